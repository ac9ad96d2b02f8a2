"""Import and export: 10 000 rows of a CSV file, a job for each; 500 000 rows in parts, joined to one file at the end.

Run the workers:   kiqcluster -r examples.import_export default default
Then:              python -m examples.import_export import customers.csv     (makes the file if there is none)
                   python -m examples.import_export export orders.csv        --rows 500000
Both print the status of their batch until it is complete.  kiqctl batches shows the same.
"""

from examples.import_export.jobs import export_part, handle_row, join_parts

__all__ = ["export_part", "handle_row", "join_parts"]

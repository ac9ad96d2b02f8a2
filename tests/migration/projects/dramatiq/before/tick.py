"""What the crontab of the host runs: `* * * * * python tick.py`."""

from shop import report

report.send()

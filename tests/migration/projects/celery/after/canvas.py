"""A chain, and rows with a callback, of tasks of the layer."""

from shop import app, note, welcome

from kiqcluster.batches import Batch


@app.task
def receipt(text: str) -> str:
    note(f"receipt {text}")
    return text


@app.task
def finished(task_id: str) -> None:
    note(f"rows {Batch.get(task_id).status().state}")


def push() -> None:
    welcome.job.then(receipt.job).enqueue("bob")
    Batch.create("rows", receipt.job, [["one"], ["two"]], on_complete=finished.job)

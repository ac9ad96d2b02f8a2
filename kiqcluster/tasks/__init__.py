"""Tasks: many jobs with one status, kept in Redis.

from kiqcluster.tasks import Task

task = Task.create("import", HandleRow, rows, on_complete=Report)      one job for each row
task.status()                                                          counts, percent, failures with their messages

Read in this order:
records     the values: TaskStatus, TaskEvent, TaskChange, TaskParts
callbacks   jobs that a task pushes when it is complete, has succeeded, or has its first error
added_jids  ids of the jobs that a job adds to a task: the same in each of its runs
task        Task: create, add, status, events, cancel, mark
history     tasks in a database (extra `sql`); imported by itself: kiqcluster.tasks.history
status_app  the same as JSON over HTTP

The script that ends a job changes its event, the counts and the task in one step (store/lua/tasks; features/tasks says
which end of a run means which status).
"""

from kiqcluster.errors import NormalFailure, TaskEnded
from kiqcluster.tasks.records import TaskChange, TaskEvent, TaskParts, TaskStatus
from kiqcluster.tasks.status_app import status_app
from kiqcluster.tasks.task import Task, current_task

__all__ = [
    "NormalFailure",
    "Task",
    "TaskChange",
    "TaskEnded",
    "TaskEvent",
    "TaskParts",
    "TaskStatus",
    "current_task",
    "status_app",
]

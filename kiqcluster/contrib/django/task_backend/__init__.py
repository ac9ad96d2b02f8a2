"""Task backend: the backend of Django's tasks framework.

1. framework    the framework, of Django or of the backport
2. options      OPTIONS of the backend and of a task
3. json_values  arguments and results as plain JSON
4. results      events of a task → Django's TaskResult
5. runner       runs a task in a worker
6. outbox_tasks tasks as rows of an outbox
7. backend      TaskBackend
"""

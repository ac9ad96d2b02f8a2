"""Orders to clusters, and the state that clusters publish.  Used by kiqctl, api and the processes of a cluster.

Read in this order:
orders             the table of orders, and how they are validated; pure
control_messages   sends an order through Redis, in the list of one process
process_registry   lists the processes in Redis, Ruby's too, and groups them by cluster
fleet              which queues and which applications have a live process
cancellation       removes a job wherever it waits, and tells it wherever it runs
stacks             the stacks of threads that a process was asked for, kept for a while
cluster_document   ClusterStatus: the state of a cluster, read from Redis or from GET /status; slot_state: its words
transports         sends an order to clusters and returns their answers: redis_transport, socket_transport
waiting            waits until clusters have drained, rolled or reloaded
deploy_lock        allows one deploy at a time; deploy_transport: the orders of a deploy, also while Redis is away
"""

"""Orders to clusters, and what clusters say of themselves.  For kiqctl, api and the processes of a cluster.

Read in this order:
orders             the table of orders, and their check; pure
control_messages   an order on its way through Redis, in the list of one process
process_registry   the processes that show in Redis, Ruby's too, and the clusters that they belong to
cluster_document   what a cluster says of itself: one form, read from Redis or from GET /status
transports         how an order reaches a cluster, and what comes back: redis_transport, socket_transport
waiting            until everything has drained, rolled or reloaded
deploy_lock        one deploy at a time; deploy_transport: orders of a deploy, also while Redis is away
"""

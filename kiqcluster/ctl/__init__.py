"""kiqctl: steer and watch a fleet, through Redis or through the control socket of one supervisor.

Read in this order:
command     the command itself: which groups of commands there are, how they fail
options     what the commands share: where Redis is, whom they are about, how they print
ways        how messages get to supervisors and what these show: by_redis, by_socket
waiting     until everything drained, until everything rolled
steer       quiet, resume, roll, reload
deploy      deploy begin, commit, abort
ps          who is there
exporter    gauges of what lies in Redis, for Prometheus: gauges reads them

Never: imports a supervisor or a worker.  What it knows of them they have written to Redis (fleet.py) or say on /status.
"""

"""kiqctl: steer and watch a fleet, through Redis or through the control socket of one supervisor.

command    which commands there are, and how they fail
text/      what they share: options, output, tables
jobs/      commands about jobs
fleet/     commands about clusters and processes
top/       the live screen
exporter/  gauges for Prometheus

Never: imports a supervisor or a worker.  What it knows of them comes from control/.
"""

"""kiqctl: steer and watch a fleet, through Redis or through the control socket of one supervisor.

Read in this order:
command     the command itself: which groups of commands there are, how they fail
options     what the commands share: where Redis is, whom they are about, how they print; with it tables (what fits a
            terminal, and words for numbers), progress and confirm
ways        how messages get to supervisors and what these show: by_redis, by_socket
waiting     until everything drained, until everything rolled
steer       quiet, resume, roll, reload, kill
deploy      deploy begin, commit, abort; deploy_lock: one at a time; deploy_way: on, also while Redis is away
signals     signal, dump: whom an identity names, Ruby's processes among them
ps, busy    who is there, and what runs; monitor: the same in sidekiqmon's layout
enqueue     a job of any class
queues      what waits where: list, pause, resume, clear, latency; jobs: those of one queue; stats: counters and sizes
entries     retries, scheduled, dead, made from tables: kinds (the sets), verbs (what is done to entries)
migrate     jobs of a class or queue to another queue
            with these: selection (which are meant), naming (which an id names), bulk (many at a time, told truly),
            listing (pages), places (where a job is that is not there), trimming (how many older dead jobs a kill drops)
top         picture (what there is, for two round trips) → views (as rows of words) → screen (live); its keys are deeds,
            done by the looker, the thread that talks to Redis
completion  the script for a shell, and the names that it offers
exporter    gauges of what lies in Redis, for Prometheus: gauges reads them

Never: imports a supervisor or a worker.  What it knows of them they have written to Redis (fleet.py) or say on /status.
"""

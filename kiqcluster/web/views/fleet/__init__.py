"""Pages of clusters and processes, of the jobs that they run, and of what holds for all of them.

clusters     /clusters, /clusters/<cluster>, /processes/<process>: supervisors, processes, the deploy; orders to them
orders       what clusters and processes can be asked for, and what became of it
threads      the stacks of a process, by thread
busy         /busy: the jobs that run; cancel one, kill the process of one
routes       /routes: to which queue each class goes, and why; whether all processes have the same rules
strikes      /strikes: jobs that are deferred or dropped for a while; add, remove
"""

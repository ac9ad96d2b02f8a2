"""Commands about clusters and processes.

ps        clusters and workers, with their states
routes    to which queue each class goes, by which rule; whether the fleet has the same rules
steer     quiet, resume, roll, reload, kill
cancel    cancel: jobs by their ids, wherever they are
deploy    deploy begin, commit, abort
signals   signal, dump: for clusters, workers and Ruby's processes
web       serves the web pages, which are in kiqcluster/web
monitor   a status report in the layout of sidekiqmon
"""

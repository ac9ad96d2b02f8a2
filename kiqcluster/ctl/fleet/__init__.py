"""Commands about clusters and processes.

ps        who is there
steer     quiet, resume, roll, reload, kill
deploy    deploy begin, commit, abort
signals   signal, dump: whom an identity names, Ruby's processes among them
monitor   who is there, in the layout of sidekiqmon
"""

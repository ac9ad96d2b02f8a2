"""What a push adds to its payload, or changes in it.

context        who enqueued a job and for which request
size_limiter   large arguments: reported, compressed or refused
encryption     `encrypt`: the last argument is a secret
"""

"""The supervisor's pages and its control socket.

server      connections, requests and responses in the supervisor's loop
endpoints   which path answers what
status      the document of /status, and why a cluster is not ready; pure
"""

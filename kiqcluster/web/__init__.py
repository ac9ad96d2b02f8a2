"""Web pages: a WSGI application about all that lies in a Redis, for Python's and Ruby's jobs.  Extra `web`.

Read in this order:
app         create_app; a request from its arrival to its answer
routing     what a page and an action are, and the table of all of them
context     what a view and an action are given
views/      one module per page: pure functions that read, and actions
users       who asks: roles, credentials, the hook `authorize`
errors      what went wrong → an answer
security/   forged requests: host, origin, token; the headers of every answer; keys of jobs that hide what they name
rate_limit  how often somebody may ask for what is costly
settings    [web] of the configuration
mount       below which path browsers find the pages, where a proxy takes it away
templating  templates → HTML: environments by language, fragments, what is unsafe in text
arguments   a job's arguments as pages show them
formats     numbers, times and durations as text
i18n        message catalogues, and which language an answer has
assets      the files of static/, by a hash of their content
cookies     what a browser keeps: token, message after an action, language, theme
wsgi        `application` for any WSGI server
command     what `kiqctl web` runs
"""

from kiqcluster.web.app import create_app
from kiqcluster.web.users import Role, User

__all__ = ["Role", "User", "create_app"]

"""The checker: what a code base uses of Celery, and what each use becomes.  It imports nothing of the application.

source      the files as trees; what they import
modules     which file an import means, by whole names
known       which names are apps and tasks
unfollowed  names that may be apps, and of which no file tells what they are
signals     signals, and packages beside Celery: what each becomes
finding     Finding: one use in a file
configs     what config_from_object is given
assigned    the settings that files set, in all forms
values      an expression → its value, as far as the file tells it
options     the keywords of a declaration or a call → findings
settings    the settings → findings
schedules   beat_schedule → cron entries
beat        the schedules that files declare
scan        the trees → findings
report      what `check` prints
"""

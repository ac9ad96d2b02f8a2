"""/metrics: the series of all children as one, and the supervisor's own.

page          takes frames in, makes the page in short steps
aggregate     families of the children, summed or by slot; counters never go back
own_metrics   families of the supervisor itself
text_format   samples as text; pure
"""

"""What an application declares.

Read in this order:
registry         job name → definition; only registered names run
source_location  where a job is declared; whether its module runs again
argument_types   arguments of types that JSON lacks, by the annotations of perform, on both sides of the queue
converters       the values of one type ↔ JSON
subclasses       values of subclasses of datetime, Decimal and such → values of these classes
losses           where a model differs from the one that its JSON gives back
changes          where the value that a job would get differs from the one that a push was given
annotations      which types an annotation holds, and what they need
signatures       which arguments a job takes, by the function that is called for it
definitions      the class or function of a job → its definition, checked and registered
bound_calls      what perform is called with, whichever of its defaults a push gives
options          which options a job may have, and their valid values
shared_names     what is declared under names that all applications on a Redis share
argument_filter  which arguments logs and web pages show
loading          finds and imports the application that -r names
"""

"""What a terminal shows, and what the commands of kiqctl have in common.

options      shared options, how Redis is found, output, questions and progress
tables       columns that fit the terminal, words for numbers and times, JSON in one line; pure
pager        pages of long lists; the default command of a group
application  imports the application, for commands that ask where its classes go
shards       what each shard has; the column and the members of a list over several
rows         rows of jobs, queues and processes; pure
completion   what a shell completes
"""

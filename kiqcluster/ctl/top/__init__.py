"""kiqctl top and busy: the live screen.

top         the command
screen      the terminal program
refresher   the thread that alone talks to Redis
actions     what a key does to what is selected
busy        what runs, once
"""

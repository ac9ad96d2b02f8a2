"""What an application declares.

Read in this order:
registry     job name → definition; only registered names run
definitions  the class or function of a job → its definition, checked and registered
options      which options a job may have, and their valid values
loading      finds and imports the application that -r names
"""

"""The web pages in a browser.  A package, so that its fixtures end when the next test is another folder's: while
playwright runs, no other event loop can.
"""

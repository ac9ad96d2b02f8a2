"""A small shop: an order is kept in SQLite, and a job sends its receipt.

Web server:  uvicorn shop.main:app
Workers:     kiqcluster -r shop.jobs 'cronjob:*' default,mailers
Tests:       pytest
"""

"""What is known of an order."""

from django.db import models


class Order(models.Model):
    email = models.EmailField()
    is_paid = models.BooleanField(default=False)

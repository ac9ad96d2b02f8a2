from django.db import models


class Order(models.Model):
    book = models.CharField(max_length=200)
    is_packed = models.BooleanField(default=False)

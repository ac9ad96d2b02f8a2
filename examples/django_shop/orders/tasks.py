"""Tasks about orders, of Django's own framework."""

from django.db import transaction
from mails.jobs import Receipt
from orders.declare import task
from orders.models import Order

from kiqcluster.contrib.django import enqueue_on_commit


@task()
def charge(order_id):
    """Charge an order, and send a receipt once that is in the database."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=order_id)
        order.is_paid = True
        order.save()
        enqueue_on_commit(Receipt, order_id, order.email)
    return order.email

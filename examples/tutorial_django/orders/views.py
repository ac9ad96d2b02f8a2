from django.db import transaction
from django.http import HttpResponse
from django.views.decorators.csrf import csrf_exempt

from orders.jobs import pack
from orders.models import Order


@csrf_exempt  # so that curl can place an order
@transaction.atomic
def place(request):
    order = Order.objects.create(book=request.POST["book"])
    pack.perform_async(order.pk)
    return HttpResponse(f"order {order.pk} is placed\n")

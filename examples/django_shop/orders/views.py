"""What the shop answers."""

from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from orders.models import Order
from orders.tasks import charge


@csrf_exempt  # so that curl can place an order
@require_POST
@transaction.atomic
def place_order(request):
    """Store an order; it is charged once the transaction is committed (enqueue_on_commit)."""
    order = Order.objects.create(email=request.POST["email"])
    result = charge.enqueue(order.pk)
    return JsonResponse({"order": order.pk, "task": result.id})

from kiqcluster import job
from orders.models import Order


@job(enqueue_on_commit=True)
def pack(order_id: int) -> None:
    order = Order.objects.get(pk=order_id)
    order.is_packed = True
    order.save()
    print(f"{order.book} is packed")

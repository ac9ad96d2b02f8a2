"""Jobs that send mails."""

from django.core.mail import send_mail

from kiqcluster import Job


class Receipt(Job, queue="mails", retry=5):
    def perform(self, order_id: int, email: str) -> None:
        send_mail(f"Order {order_id}", "Thank you.", "shop@example.com", [email])

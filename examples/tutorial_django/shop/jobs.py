"""The jobs of the shop."""

from kiqcluster import job


@job(queue="mailers")
def send_receipt(order_id: int) -> None:
    print(f"receipt for order {order_id}")


@job
def place_order(order_id: int) -> None:
    send_receipt.perform_async(order_id)


@job(retry=3)
def import_prices(file: str) -> None:
    with open(file) as prices:
        print(f"{len(prices.readlines())} prices in {file}")


@job(cron="* * * * *", tz="Europe/Berlin")
def count_stock() -> None:
    print("the stock is counted")

from kiqcluster import job


@job(queue="mailers")
def welcome(user_id: int) -> None:
    print(f"welcome, {user_id}")

"""The DAG that drains the backlog: as many mapped tasks as WORKERS, each of which takes prompts from the one table until none is left.

Put this file and worker.py into the folder of your DAGs. The workers' environment says where things are: BACKLOG_DB, SLUICE_URL,
SLUICE_API_KEY, BACKEND_URL. Tried with Airflow 3.1 and 2.11.
"""

import datetime
import os
import sys

try:
    from airflow.sdk import dag, task
except ImportError:  # Airflow 2
    from airflow.decorators import dag, task

# Airflow may import this file from elsewhere.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))

WORKERS = 4  # mapped tasks
THREADS = 12  # of each; WORKERS × THREADS should be a little more than all models may run at once (50 in sluice.yaml)
RUN = datetime.timedelta(minutes=25)  # after which a worker takes no more prompts
LIMIT = datetime.timedelta(minutes=40)  # after which Airflow ends it; what still runs then is taken again by the next run


@dag(
    schedule=datetime.timedelta(minutes=5),  # a look at what is new; a run without prompts ends at once
    start_date=datetime.datetime(2025, 1, 1, tzinfo=datetime.timezone.utc),
    catchup=False,
    max_active_runs=2,  # the next run need not wait for the last prompt of this one: claims keep them apart
    tags=["sluice"],
)
def solve_backlog():
    @task(execution_timeout=LIMIT, retries=2, retry_delay=datetime.timedelta(seconds=30))
    def drain(number: int) -> int:
        import worker

        options = worker.parser().parse_args([
            "--db", os.environ["BACKLOG_DB"], "run",
            "--sluice", os.environ.get("SLUICE_URL", "http://127.0.0.1:8080"),
            "--backend", os.environ.get("BACKEND_URL", "http://127.0.0.1:9000"),
            "--workers", str(THREADS),
        ])
        sluice = worker.Sluice(options.sluice, os.environ.get("SLUICE_API_KEY", ""), options.max_wait_s)
        running = worker.Worker(sluice, worker.Backlog(options.db, options.claim_s), options)
        solved = running.run(options.workers, RUN.total_seconds())
        if running.hopeless:
            raise RuntimeError(f"worker {number} gave up: {running.hopeless}")
        return solved

    drain.expand(number=list(range(WORKERS)))


solve_backlog()

"""The DAG that processes the backlog with WORKERS mapped tasks. Each claims prompts from the table until none is left.

Put this file and worker.py into the folder of your DAGs. Set BACKLOG_DB, SLUICE_URL, SLUICE_API_KEY and BACKEND_URL in
the workers' environment. The DAG was tested with Airflow 3.1 and 2.11.
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
# The threads of each mapped task. WORKERS × THREADS should be a little more than all models may run
# at once, which is 50 in sluice.yaml.
THREADS = 12
RUN = datetime.timedelta(minutes=25)  # then a worker claims no more prompts
LIMIT = datetime.timedelta(minutes=40)  # then Airflow kills the task; the next run processes its remaining prompts


@dag(
    schedule=datetime.timedelta(minutes=5),  # a run without prompts ends at once
    start_date=datetime.datetime(2025, 1, 1, tzinfo=datetime.timezone.utc),
    catchup=False,
    max_active_runs=2,  # the next run may start before this one has finished its last prompts
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
        if running.failure:
            raise RuntimeError(f"worker {number} gave up: {running.failure}")
        return solved

    drain.expand(number=list(range(WORKERS)))


solve_backlog()

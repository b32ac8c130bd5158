"""Processes a backlog of tasks on a Models Backend at the rate that Sluice allows.

The backlog is a table. A worker processes one task after the other. It claims the task in the
table, asks Sluice which model may process it and when (POST /schedule), and calls the Models
Backend with that model. Then it reports to Sluice that the task is completed (POST /complete).
There are no batches, so no task waits for the slowest of a batch. There are no fixed shares, so no
worker is idle while another has work left.

The worker needs only Python 3.9 or newer. See README.md for how to run it.
"""

import argparse
import contextlib
import http.client
import json
import logging
import os
import random
import signal
import sqlite3
import sys
import threading
import time
import urllib.error
import urllib.request

log = logging.getLogger("worker")


class Refused(Exception):
    """The task will never be admitted, because it is too large for every model."""


class Misconfigured(Exception):
    """No task will be admitted, because the key, the pool or the address is wrong."""


class Stopped(Exception):
    """The worker was told to stop."""


def post(url, body, key="", timeout=30.0):
    """Posts JSON and returns (status, answer, seconds of Retry-After). Raises OSError without an answer."""
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = "Bearer " + key
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, read_json(response), 0.0
    except urllib.error.HTTPError as error:  # an error status is an answer too
        with error:
            after = error.headers.get("retry-after", "")
            return error.code, read_json(error), float(after) if after.isdigit() else 0.0
    except http.client.HTTPException as error:
        raise OSError(f"the answer was cut: {error!r}") from error


def read_json(response):
    try:
        answer = json.loads(response.read())
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


class Sluice:
    """The client of the batch API. It repeats every call until it gets an answer. Repeating is safe: /schedule admits a
    request_id once, and /complete has no effect the second time."""

    def __init__(self, url, key="", max_wait_s=20.0, stop=None):
        self.url, self.key, self.max_wait_s = url.rstrip("/"), key, max_wait_s
        self.stop = stop or threading.Event()

    def schedule(self, estimated_tokens, request_id, pool=None, model=None):
        """Returns (model, task id) once the task is admitted. The lease ends with complete, or after its time."""
        body = {"estimated_tokens": estimated_tokens, "request_id": request_id, "max_wait_ms": int(self.max_wait_s * 1000)}
        body.update({name: value for name, value in (("pool", pool), ("model", model)) if value})
        while True:
            answer = self._call("/schedule", body)
            if "task_id" in answer:
                return answer["model_backend_id"], answer["task_id"]
            # Sluice gives all waiting workers a similar delay. Jitter spreads their next calls.
            self._sleep(answer.get("wait_for_ms", 1000) / 1000 * random.uniform(1.0, 1.25))

    def complete(self, task_id, actual_tokens=None):
        """Completes the task and returns False if it had ended before. It also works after stop, because other tasks
        wait for the capacity."""
        body = {"task_id": task_id}
        if actual_tokens is not None:
            body["actual_tokens"] = actual_tokens
        return "error" not in self._call("/complete", body, tries=8, stoppable=False)

    def renew(self, task_id):
        """Renews the lease and returns its seconds, or None if the task has ended."""
        answer = self._call("/renew", {"task_id": task_id}, tries=3, stoppable=False)
        return answer["lease_ms"] / 1000 if "lease_ms" in answer else None

    def _call(self, path, body, tries=None, stoppable=True):
        failed = 0
        while True:
            if stoppable and self.stop.is_set():
                raise Stopped
            try:
                status, answer, after = post(self.url + path, body, self.key, self.max_wait_s + 15)
            except OSError as error:
                status, answer, after = 0, {"error": str(error)}, 0.0
            if status == 200 or answer == {"error": "Task not found"}:
                return answer
            if 400 <= status < 500 and status not in (408, 429):
                fault = answer.get("error") or {}
                kind = Refused if isinstance(fault, dict) and fault.get("param") == "estimated_tokens" else Misconfigured
                raise kind(f"{path}: {status} {answer}")
            failed += 1
            if failed == tries:
                raise OSError(f"{path}: {status} {answer}")
            log.warning("%s: %s %s; retrying", path, status, answer)
            pause = max(after, random.uniform(0, min(0.1 * 2**failed, 10.0)))
            if stoppable:
                self._sleep(pause)
            else:
                time.sleep(pause)

    def _sleep(self, seconds):
        if self.stop.wait(seconds):
            raise Stopped


class Backlog:
    """The table of tasks, in SQLite. PostgreSQL needs the same statements and `FOR UPDATE SKIP LOCKED` in claim.

    A claim ends after a time, so that other workers get the tasks of a dead worker. The request id contains the number of
    the attempt. Each attempt is admitted anew, because the dead worker's call may still be running on its model."""

    def __init__(self, path, claim_s=900.0):
        self.path, self.claim_s = path, claim_s
        self._local = threading.local()
        with self._change() as db:
            db.execute("""CREATE TABLE IF NOT EXISTS tasks (
                id TEXT PRIMARY KEY, prompt TEXT NOT NULL, estimated_tokens INTEGER NOT NULL,
                status TEXT NOT NULL DEFAULT 'unsolved',  -- unsolved, solved, refused
                attempt INTEGER NOT NULL DEFAULT 0, claimed_until REAL NOT NULL DEFAULT 0, model TEXT, answer TEXT)""")
            db.execute("CREATE INDEX IF NOT EXISTS unsolved ON tasks (status, claimed_until)")

    @contextlib.contextmanager
    def _change(self):
        if not hasattr(self._local, "db"):
            self._local.db = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            self._local.db.execute("PRAGMA journal_mode=WAL")
        db = self._local.db
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    def add(self, tasks):
        """Adds tasks {"id", "prompt", "estimated_tokens"?} and returns how many are new. Tasks with a known id stay as they are."""
        rows = [(str(t["id"]), t["prompt"], t.get("estimated_tokens") or estimate(t["prompt"])) for t in tasks]
        with self._change() as db:
            before = db.total_changes
            db.executemany("INSERT OR IGNORE INTO tasks (id, prompt, estimated_tokens) VALUES (?, ?, ?)", rows)
            return db.total_changes - before

    def claim(self):
        """Returns (task, 0), or (None, seconds until a claim may end), or (None, None) if all tasks are done."""
        now = time.time()
        with self._change() as db:
            row = db.execute("""SELECT id, prompt, estimated_tokens, attempt + 1, claimed_until FROM tasks
                WHERE status = 'unsolved' ORDER BY claimed_until LIMIT 1""").fetchone()
            if row is None:
                return None, None
            task = dict(zip(("id", "prompt", "estimated_tokens", "attempt"), row))
            if row[4] > now:
                return None, row[4] - now
            db.execute("UPDATE tasks SET attempt = ?, claimed_until = ? WHERE id = ?", (task["attempt"], now + self.claim_s, task["id"]))
            return task, 0.0

    def extend(self, task):
        """Extends the claim of the task."""
        self._set(task, "claimed_until = ?", time.time() + self.claim_s)

    def release(self, task, after_s=0.0):
        """Ends the claim after some time. A task that is done stays done."""
        self._set(task, "claimed_until = ?", time.time() + after_s)

    def solve(self, task, model, answer):
        """Saves the answer. Returns False if the claim had ended and another worker has claimed the task."""
        return self._set(task, "status = 'solved', model = ?, answer = ?", model, answer)

    def refuse(self, task, why):
        """Sets the task aside, so that no worker claims it again."""
        self._set(task, "status = 'refused', answer = ?", why)

    def _set(self, task, change, *values):
        with self._change() as db:
            return db.execute(f"UPDATE tasks SET {change} WHERE id = ? AND attempt = ? AND status = 'unsolved'",
                              (*values, task["id"], task["attempt"])).rowcount == 1

    def answers(self):
        """Returns all tasks that are done, as {"id", "status", "model", "answer"}."""
        with self._change() as db:
            rows = db.execute("SELECT id, status, model, answer FROM tasks WHERE status != 'unsolved' ORDER BY rowid").fetchall()
        return [dict(zip(("id", "status", "model", "answer"), row)) for row in rows]


def estimate(prompt):
    """Estimates the tokens of a prompt and its answer. Sluice charges the estimate and corrects it on completion."""
    return len(prompt.encode()) // 4 + 500


def call_backend(url, model, prompt, timeout):
    """Calls the Models Backend and returns (answer, tokens or None if unknown). Raises OSError if the call failed."""
    status, answer, _ = post(url.rstrip("/") + "/single", {"model": model, "prompt": prompt}, timeout=timeout)
    if status != 200 or "answer" not in answer:
        raise OSError(f"the Models Backend answered {status}")
    return answer["answer"], answer.get("total_tokens")


class Renewer(threading.Thread):
    """Renews the claims and leases of the workers, so that they do not end while a call is running."""

    def __init__(self, sluice, backlog, every_s):
        super().__init__(daemon=True)
        self.sluice, self.backlog, self.every_s = sluice, backlog, every_s
        self._lock = threading.Lock()
        self._claims, self._leases = {}, {}  # by id of the task; guarded by _lock

    def claimed(self, task):
        return self._holding(self._claims, task["id"], task)

    def leased(self, task, task_id):
        return self._holding(self._leases, task["id"], task_id)

    @contextlib.contextmanager
    def _holding(self, held, key, value):
        with self._lock:
            held[key] = value
        try:
            yield
        finally:
            with self._lock:
                del held[key]

    def run(self):
        while True:
            time.sleep(self.every_s)
            with self._lock:
                for task in self._claims.values():  # with the lock: a released task must not be extended
                    self.backlog.extend(task)
                leases = list(self._leases.items())
            for key, task_id in leases:
                try:
                    self._renew(key, task_id)
                except Exception as error:  # retried in the next round
                    log.warning("task %s could not be renewed: %s", key, error)

    def _renew(self, key, task_id):
        lease_s = self.sluice.renew(task_id)
        if lease_s is not None:
            self.every_s = min(self.every_s, lease_s / 3)
            return
        with self._lock:
            lost = self._leases.get(key) == task_id
        if lost:
            log.warning("task %s has lost its lease: renew more often than every %.1f s", key, self.every_s)


class Worker:
    """Processes tasks until none is left, until its time is over, or until it is told to stop. It runs several threads."""

    def __init__(self, sluice, backlog, options):
        self.sluice, self.backlog, self.options = sluice, backlog, options
        self.renewer = Renewer(sluice, backlog, min(options.renew_s, options.claim_s / 3))
        self.solved = 0
        self.failure = None  # why it gave up, or None
        self._lock = threading.Lock()

    def run(self, threads, stop_after_s=None):
        """Runs the threads and returns how many tasks they solved."""
        if stop_after_s:
            timer = threading.Timer(stop_after_s, self.sluice.stop.set)
            timer.daemon = True
            timer.start()
        self.renewer.start()
        running = [threading.Thread(target=self._loop, daemon=True) for _ in range(threads)]
        for thread in running:
            thread.start()
        try:
            for thread in running:
                thread.join()
        finally:  # also if Airflow's own time limit interrupts this call
            self.sluice.stop.set()
        return self.solved

    def _loop(self):
        stop = self.sluice.stop
        while not stop.is_set():
            task, wait_s = self.backlog.claim()
            if task is not None:
                self._process(task)
            elif wait_s is None:
                return
            else:  # other workers have claimed the rest and may die
                stop.wait(min(wait_s, 1.0))

    def _process(self, task):
        retry_s = 0.0
        try:
            with self.renewer.claimed(task):
                retry_s = self._solve(task)
        except Stopped:
            pass
        except Refused as error:
            log.error("task %s is refused: %s", task["id"], error)
            self.backlog.refuse(task, str(error))
        except Misconfigured as error:
            self.failure = error
            self.sluice.stop.set()
        self.backlog.release(task, retry_s)

    def _solve(self, task):
        """Returns the delay in seconds before a failed task is retried."""
        request_id = f"{task['id']}/{task['attempt']}"
        model, task_id = self.sluice.schedule(task["estimated_tokens"], request_id, self.options.pool)
        tokens = None  # a failed call is charged the estimate
        try:
            with self.renewer.leased(task, task_id):
                answer, tokens = call_backend(self.options.backend, model, task["prompt"], self.options.backend_timeout_s)
            if self.backlog.solve(task, model, answer):
                with self._lock:
                    self.solved += 1
        except OSError as error:
            log.warning("task %s failed on %s: %s", task["id"], model, error)
            return random.uniform(0.5, 1.5) * min(2.0 ** task["attempt"], 60.0)
        finally:
            try:
                self.sluice.complete(task_id, tokens)
            except Exception as error:  # the lease ends after its time
                log.warning("task %s could not be completed: %s", task["id"], error)
        return 0.0


def parser():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--db", default="tasks.db", help="the backlog, a SQLite file (default %(default)s)")
    commands = p.add_subparsers(dest="command", required=True)
    load = commands.add_parser("load", help="add tasks from a file of JSON lines {id, prompt, estimated_tokens?}")
    load.add_argument("file", help="- means standard input")
    commands.add_parser("answers", help="print the tasks that are done as JSON lines")
    run = commands.add_parser("run", help="solve tasks until none is left")
    run.add_argument("--sluice", default="http://127.0.0.1:8080", help="the URL of Sluice (default %(default)s)")
    run.add_argument("--backend", default="http://127.0.0.1:9000", help="the Models Backend (default %(default)s)")
    run.add_argument("--pool", help="the pool of models to choose from (default: Sluice's first)")
    run.add_argument("--workers", type=int, default=20, help="number of threads; a few more than all models may run at once (default %(default)s)")
    run.add_argument("--stop-after-s", type=float, help="claim no more tasks after this time, and finish the running ones")
    run.add_argument("--max-wait-s", type=float, default=20.0, help="how long a call of /schedule may wait (default %(default)s)")
    run.add_argument("--renew-s", type=float, default=60.0, help="renew leases at least this often (default %(default)s)")
    run.add_argument("--claim-s", type=float, default=900.0, help="duration of a claim that is not extended (default %(default)s)")
    run.add_argument("--backend-timeout-s", type=float, default=600.0, help="timeout of one call (default %(default)s)")
    return p


def main(argv=None):
    options = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    backlog = Backlog(options.db, getattr(options, "claim_s", 900.0))
    if options.command == "load":
        with sys.stdin if options.file == "-" else open(options.file, encoding="utf-8") as lines:
            print(backlog.add(json.loads(line) for line in lines if line.strip()), "new tasks")
    elif options.command == "answers":
        for answer in backlog.answers():
            print(json.dumps(answer))
    else:
        sluice = Sluice(options.sluice, os.environ.get("SLUICE_API_KEY", ""), options.max_wait_s)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sluice.stop.set())
        worker = Worker(sluice, backlog, options)
        print(worker.run(options.workers, options.stop_after_s), "tasks solved")
        if worker.failure:
            sys.exit(f"giving up: {worker.failure}")


if __name__ == "__main__":
    main()

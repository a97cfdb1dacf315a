#!/usr/bin/env python3
"""Record what a real Slurm prints, as fixtures for the parsers.

    .venv/bin/python -m tests.slurm.record [RELEASE ...]

For each release it starts a mini cluster of its own, fills it with one job of every kind the
parsers must know, and writes the output of the commands to tests/unit/recorded/RELEASE/.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from slurmsched.backends.slurm.squeue_table import columns_query, excluded_query

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "docker-slurm" / "cluster"
RECORDED = ROOT / "tests" / "unit" / "recorded"
RELEASES = ("trixie", "bookworm", "sid", "source")
NODES = "v100:3x8,p100:3x8,k80:6x8"

SLEEP = "#!/bin/sh\nexec sleep 3600\n"
STUBBORN = "#!/bin/bash\ntrap '' TERM CONT\nwhile true; do sleep 1; done\n"

POSING = (
    "JobId=1 JobName=x UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=9 Nice=0 Account=x QOS=x JobState=RUNNING"
)
LAYOUT = (
    "Nodes=v100-2 CPU_IDs=0-23 Mem=511992 GRES=gpu:v100:8(IDX:0-7) MinCPUsNode=1 MinMemoryNode=9 TresPerJob=gres/gpu:99"
)

COMMENT = "synsched:model=resnet50,ckpt=usr1 other words JobState=RUNNING\nsecond line: 学习 NodeList=x"

# What each job is called, who submits it and with which options.
RUNNING = {
    "exclusive": ("bob", "--exclusive --nodelist=k80-3"),
    "draining": ("bob", "--nodelist=k80-4 --gres=gpu:k80:1"),
    "single": ("alice", "--gres=gpu:v100:2 --cpus-per-task=6 --mem=100G --time=2-12:00:00 --signal=B:USR1@120"),
    "gang": ("alice", "--nodes=2 --ntasks-per-node=1 --cpus-per-task=24 --gpus-per-node=v100:8 --mem=400G"),
    "four": ("bob", "--ntasks=4 --gpus=4"),
    "split": ("bob", "--nodes=2 --ntasks=4 --gpus=p100:4 --gpus-per-task=p100:1 --nodelist=p100-[1-2]"),
    "untyped": ("bob", "--gres=gpu:2 --no-requeue"),
    "pernode": ("carol", "--gpus-per-node=k80:1 --cpus-per-gpu=3 --mem-per-gpu=60G"),
    "constraint": ("carol", "--constraint='v100|p100' --gres=gpu:1 --exclude=v100-[2-3]"),
    "shard-a": ("carol", "--gres=shard:4"),
    "shard-b": ("carol", "--gres=shard:4"),
    "unmanaged": ("bob", "--partition=debug --mem-per-cpu=1000"),
    "cpu only": ("bob", "--cpus-per-task=2 --mem=4G --nice=100"),
    "array": ("alice", "--array=1-6%2 --gres=gpu:k80:1"),
    "suspended": ("carol", "--gres=gpu:1"),
    "stubborn": ("carol", "--gres=gpu:p100:1"),
    "requeue": ("alice", "--gres=gpu:1"),
    "requeuehold": ("alice", "--gres=gpu:1"),
    "cancelled": ("alice", "--gres=gpu:1"),
    "ResNet 50: lr=0.1 JobId=7 ünïcode": (
        "alice",
        f"--gres=gpu:1 --comment='{COMMENT}'",
    ),
    f"posing\n{POSING} {LAYOUT}": (
        "carol",
        f"--gres=gpu:k80:1 --network='x {LAYOUT}' --comment='x\n{POSING} {LAYOUT}'",
    ),
}
PENDING = {
    "pending": ("alice", "--nodes=3 --gres=gpu:v100:8"),
    "held": ("bob", "--hold --gres=gpu:v100:2"),
    "held-by-operator": ("bob", "--nodes=3 --gres=gpu:v100:8"),
    "later": ("bob", "--begin=now+1hour --gres=gpu:1"),
    "held-array": ("carol", "--hold --array=0-99:3%5 --gres=gpu:1"),
    "two-partitions": ("carol", "--partition=gpu,debug --nodes=3 --gres=gpu:v100:8 --time-min=10 --time=60"),
    "deadline": ("carol", "--nodes=3 --gres=gpu:v100:8 --deadline=now+2hours --time=30 --licenses="),
}


@dataclass
class Recorder:
    """One release's cluster and where its output goes."""

    release: str
    jobs: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The cluster's name, apart from those people use."""
        return f"record-{self.release}"

    @property
    def folder(self) -> Path:
        """Where the recordings go until all are made."""
        return Path(tempfile.gettempdir(), self.name)

    def cluster(self, verb: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a verb of docker-slurm/cluster."""
        argv = [str(CLUSTER), verb, "--name", self.name, *arguments]
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)

    def do(self, user: str, command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a shell command in the login container."""
        return self.cluster("exec", "--user", user, "--", "sh", "-c", command, stdin=stdin)

    def must(self, user: str, command: str, stdin: str = "") -> str:
        """Run a shell command that has to succeed."""
        result = self.do(user, command, stdin)
        if result.returncode:
            raise SystemExit(f"{self.release}: {command}: {result.stderr.strip()}")
        return result.stdout.strip()

    def submit(self, name: str, user: str, options: str, script: str = SLEEP) -> None:
        """Submit a batch job and remember its id."""
        command = f"sbatch --parsable --job-name={shlex.quote(name)} {options}"
        self.jobs[name] = self.must(user, command, script).split(";")[0]

    def keep(self, file: str, user: str, command: str) -> None:
        """Write a command's standard output to a file."""
        argv = [str(CLUSTER), "exec", "--name", self.name, "--user", user, "--", "sh", "-c", command]
        result = subprocess.run(argv, capture_output=True, check=False)
        if result.returncode and not result.stdout:
            say(f"{self.release}: {command}: {result.stderr.decode().strip()}")
        (self.folder / file).parent.mkdir(exist_ok=True)
        (self.folder / file).write_bytes(result.stdout)

    def error(self, name: str, user: str, command: str) -> None:
        """Write a failing command's standard error to a file and its exit status to the list of commands."""
        result = self.do(user, command)
        (self.folder / "errors" / f"{name}.txt").write_text(result.stderr)
        if result.stdout:  # some complaints go there
            (self.folder / "errors" / f"{name}.stdout.txt").write_text(result.stdout)
        self.errors.append(f"{name}\t{result.returncode}\t{user}\t{command}\n")

    def wait(self, condition: str, seconds: int = 60) -> None:
        """Wait until a shell condition holds."""
        deadline = time.monotonic() + seconds
        while (result := self.do("root", condition)).returncode:
            if time.monotonic() > deadline:
                say(f"{self.release}: still not so after {seconds} s: {condition} {result}")
                return
            time.sleep(1)


def say(line: str) -> None:
    """Tell the person."""
    sys.stderr.write(f"{line}\n")


def main(releases: list[str]) -> None:
    """Record every release asked for."""
    for release in releases or RELEASES:
        recorder = Recorder(release)
        shutil.rmtree(recorder.folder, ignore_errors=True)
        (recorder.folder / "errors").mkdir(parents=True)
        RECORDED.mkdir(exist_ok=True)
        up = recorder.cluster("up", "--release", release, "--nodes", NODES, "--source", str(ROOT / "docker-slurm"))
        if up.returncode:
            raise SystemExit(up.stderr.strip())
        try:
            _record_empty(recorder)
            _submit_all(recorder)
            _disturb(recorder)
            _record_state(recorder)
            _record_errors(recorder)
        finally:
            recorder.cluster("down")
        shutil.rmtree(RECORDED / release, ignore_errors=True)
        shutil.move(recorder.folder, RECORDED / release)
        say(f"{release}: {len(recorder.jobs)} jobs, {len(recorder.errors)} errors recorded in {RECORDED / release}")


SBATCH_OPTIONS = r"""
echo '# man sbatch, OPTIONS'
zcat /usr/share/man/man1/sbatch.1.gz |
awk '/^\.SH "?OPTIONS"?/{on=1;next} /^\.SH/{on=0} on && last ~ /^\.TP/ && /^\\fB\\-/{print} {last=$0}' |
sed 's/\\f[BIRP]//g; s/\\-/-/g; s/\\&//g'
echo '# sbatch --help'
sbatch --help | grep -oE '^ +(-[A-Za-z?], )?--[a-z-]+[^ ]*' | sed 's/^ *//'
"""


def _record_empty(recorder: Recorder) -> None:
    recorder.keep("sbatch-options.txt", "alice", SBATCH_OPTIONS)
    recorder.keep("show_job_none.txt", "synsched", "scontrol -d -o show job")
    recorder.keep("show_reservation_none.txt", "synsched", "scontrol -o show reservation")
    recorder.keep("version.txt", "synsched", "scontrol --version")
    recorder.keep("ping.txt", "synsched", "scontrol ping")
    recorder.keep("show_config.txt", "synsched", "scontrol show config")
    recorder.keep("show_partition.txt", "synsched", "scontrol -o show partition")
    for user in ("synsched", "alice", "root"):
        file = "sacctmgr_user.txt" if user == "synsched" else f"sacctmgr_user_{user}.txt"
        recorder.keep(file, "synsched", f"sacctmgr -nP show user {user} format=User,AdminLevel")


def _submit_all(recorder: Recorder) -> None:
    recorder.cluster("stop", "p100-3", "--kill")  # becomes DOWN* while the rest goes on
    recorder.must("root", "scontrol update NodeName=k80-5 State=DRAIN Reason='fan noise = bad, see #12'")
    recorder.must("root", "scontrol update NodeName=k80-6 State=DRAIN Reason='to be empty'")
    recorder.submit("completed", "alice", "--gres=gpu:1", "#!/bin/sh\n")
    recorder.submit("failed", "bob", "--gres=gpu:1", "#!/bin/sh\nexit 3\n")
    for name, (user, options) in RUNNING.items():
        recorder.submit(name, user, options, STUBBORN if name == "stubborn" else SLEEP)
    for name, (user, options) in PENDING.items():
        recorder.submit(name, user, options)
    recorder.submit("dependency", "alice", f"--dependency=afterok:{recorder.jobs['single']} --gres=gpu:1")
    recorder.submit("never", "alice", f"--dependency=afterok:{recorder.jobs['failed']} --gres=gpu:1")
    recorder.must("bob", "sbatch --parsable --job-name=het --gres=gpu:1 : --mem=1G", SLEEP)
    recorder.must("bob", "salloc --no-shell --job-name=interactive --gres=gpu:1 --mem=1G")
    recorder.wait("test $(squeue -h -t R | wc -l) -ge 22")


def _disturb(recorder: Recorder) -> None:
    jobs, must = recorder.jobs, recorder.must
    must("synsched", f"scontrol suspend {jobs['suspended']}")
    must("synsched", f"scontrol hold {jobs['held-by-operator']}")
    must("synsched", f"scontrol requeue {jobs['requeue']}")
    must("synsched", f"scontrol requeuehold {jobs['requeuehold']}")
    must("alice", f"scancel {jobs['cancelled']}")
    place = "ReqNodeList=v100-2 NumCPUs=12 CPUsPerTask=12 MinCPUsNode=12 MinMemoryNode=200000 SiteFactor=50"
    must("synsched", f"scontrol update JobId={jobs['held']} {place}")
    must("root", f"scontrol update JobId={jobs['single']} AdminComment='watched by jobstats: ok=1'")
    must("root", "scontrol update NodeName=k80-4 State=DRAIN Reason=maintenance")
    create = "scontrol create reservation"
    when = "StartTime=now+2days Duration=4:00:00"
    must("synsched", f"{create} ReservationName=maint Users=root {when} Nodes=v100-[1-2] Flags=MAINT,IGNORE_JOBS")
    when = "StartTime=now Duration=30"
    must("synsched", f"{create} ReservationName=synsched_1 Users=alice,bob {when} Nodes=v100-1 Flags=IGNORE_JOBS")
    recorder.wait("sinfo -h -N -n p100-3 -o %t | grep -q 'down\\*'", 90)


def _record_state(recorder: Recorder) -> None:
    # Slurm takes a DOWN node back when it next registers, so this comes last.
    recorder.must("root", "scontrol update NodeName=k80-6 State=DOWN Reason='GPU 3 fell off the bus'")
    recorder.must("carol", f"scancel {recorder.jobs['stubborn']}")  # COMPLETING for KillWait
    recorder.keep("show_job.txt", "synsched", "scontrol -d -o show job")
    _record_jobs(recorder)
    recorder.keep("show_node.txt", "synsched", "scontrol -d -o show node")
    recorder.keep("show_reservation.txt", "synsched", "scontrol -o show reservation")
    recorder.keep("sinfo.txt", "synsched", 'sinfo -N -o "%N %t %G %f"')
    recorder.keep("sshare.txt", "synsched", "sshare -a -P")
    recorder.keep("show_job_one.txt", "alice", f"scontrol -d show job {recorder.jobs['gang']}")


def _record_jobs(recorder: Recorder) -> None:
    """The table of all jobs and the wide one of an array, with what squeue complains of, and the record of each job."""
    env = "env LC_ALL=C TZ=UTC0 SLURM_BITSTR_LEN=0"
    for name, ids in (("table", ()), ("wide", (recorder.jobs["held-array"],))):
        for kind, query in (("columns", columns_query(ids)), ("excluded", excluded_query(ids))):
            recorder.keep(f"{name}_{kind}.bin", "synsched", f"{env} {shlex.join(query)} 2> /tmp/complaints")
            recorder.keep(f"{name}_{kind}.error.txt", "synsched", "cat /tmp/complaints")
    for number in recorder.must("synsched", "squeue -h -a -t all -O JobID:12").split():
        recorder.keep(f"jobs/{number}.txt", "synsched", f"echo show job {number} | scontrol -a -d -o")


# Name, user, command; {job} stands for the id of the job of that name.
ERRORS = """
update_not_owner          alice     scontrol update JobId={held} Comment=mine
requeue_not_owner         alice     scontrol requeue {four}
cancel_not_owner          alice     scancel {four}
signal_not_owner          alice     scancel --signal=USR1 --full {four}
release_operator_hold     bob       scontrol release {held-by-operator}
operator_admin_comment    synsched  scontrol update JobId={held} AdminComment=x
operator_priority_held    synsched  scontrol update JobId={held} Priority=5
operator_update_node      synsched  scontrol update NodeName=v100-1 State=DRAIN Reason=x
operator_update_partition synsched  scontrol update PartitionName=gpu State=DOWN
operator_reconfigure      synsched  scontrol reconfigure
user_reservation          alice     scontrol create reservation Users=alice StartTime=now Duration=30 Nodes=v100-1
unknown_job_show          synsched  scontrol -d -o show job 999999
unknown_job_update        synsched  scontrol update JobId=999999 Nice=1
unknown_job_requeue       synsched  scontrol requeue 999999
unknown_job_hold          synsched  scontrol hold 999999
unknown_job_release       synsched  scontrol release 999999
unknown_job_cancel        synsched  scancel 999999
unknown_job_signal        synsched  scancel --signal=USR1 --full 999999
completed_job_update      synsched  scontrol update JobId={completed} NumNodes=2
completed_job_signal      synsched  scancel --signal=USR1 --full {completed}
completed_job_hold        synsched  scontrol hold {completed}
cancelled_job_requeue     synsched  scontrol requeue {cancelled}
running_job_cpus          synsched  scontrol update JobId={single} NumCPUs=12 CPUsPerTask=12
running_job_nodes         synsched  scontrol update JobId={single} ReqNodeList=v100-2
no_requeue_job            synsched  scontrol requeue {untyped}
bad_node_update           synsched  scontrol update JobId={held} ReqNodeList=nosuch
bad_node_submit           alice     sbatch -w nosuch --wrap hostname
bad_node_show             synsched  scontrol -o show node nosuch
bad_gres_update           synsched  scontrol update JobId={held} TresPerNode=gres/gpu:h100:2
bad_field_update          synsched  scontrol update JobId={held} NoSuchField=1
too_many_gpus             alice     sbatch --gres=gpu:v100:9 --wrap hostname
invalid_partition_submit  alice     sbatch -p nosuch --wrap hostname
invalid_partition_show    synsched  scontrol -o show partition nosuch
invalid_partition_update  synsched  scontrol update JobId={held} Partition=nosuch
unknown_reservation       synsched  scontrol delete ReservationName=nosuch
stdin_one_bad             synsched  printf 'update JobId=%s Nice=1\\n' 999999 {held} 999998 | scontrol
stdin_empty_job           synsched  echo 'update JobId= Nice=1' | scontrol
slurm_conf_missing        synsched  SLURM_CONF=/nonexistent/slurm.conf scontrol -d -o show job
command_missing           synsched  PATH=/nonexistent; scontrol show job
no_association            root      setpriv --reuid 64030 --regid 64030 --clear-groups sbatch --wrap hostname
no_munge                  root      kill $(pidof munged); sleep 1; scontrol -d -o show job
"""
CONTROLLER_DOWN = """
controller_down_show      synsched  scontrol -d -o show job
controller_down_update    synsched  scontrol update JobId={held} Nice=1
controller_down_sinfo     synsched  sinfo
controller_down_cancel    synsched  scancel {held}
controller_down_submit    alice     sbatch --wrap hostname
"""
REJECTING_HOOK = """
function slurm_job_submit(job, partitions, uid)
    slurm.log_user("synsched: no such model: %s", tostring(job.comment))
    return slurm.ERROR
end

function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS
"""


def _record_list(recorder: Recorder, table: str) -> None:
    for line in table.strip().splitlines():
        name, user, command = line.split(maxsplit=2)
        for job, number in recorder.jobs.items():
            command = command.replace(f"{{{job}}}", number)
        recorder.error(name, user, command)


def _record_errors(recorder: Recorder) -> None:
    _record_list(recorder, ERRORS)
    recorder.cluster("stop", "login", "--kill")  # its munged is gone
    recorder.cluster("start", "login")
    recorder.wait("scontrol ping | grep -q UP")
    recorder.must("root", "cat > /etc/slurm/job_submit.lua", REJECTING_HOOK)
    recorder.error("lua_rejects", "alice", "sbatch --comment=synsched:model=x --wrap hostname")
    recorder.cluster("stop", "dbd")
    recorder.error("slurmdbd_down", "synsched", "sacctmgr -nP show user synsched format=User,AdminLevel")
    recorder.cluster("stop", "ctl")
    recorder.keep("ping_down.txt", "synsched", "scontrol ping")
    _record_list(recorder, CONTROLLER_DOWN)
    header = "name\texit\tuser\tcommand\n"
    (recorder.folder / "errors" / "commands.tsv").write_text(header + "".join(recorder.errors))


if __name__ == "__main__":
    main(sys.argv[1:])

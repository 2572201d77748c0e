"""The cluster's configuration files as pure text: slurm.conf, gres.conf, hosts, the task prolog, a host's start."""

from __future__ import annotations

import shlex

from jobs.rehearsal.cluster import CONTROLLER, Cluster


def slurm_conf(cluster: Cluster) -> str:
    """The text of slurm.conf."""
    at = cluster.path
    lines = [
        f"ClusterName={cluster.name}",
        f"SlurmctldHost={CONTROLLER}({cluster.address(CONTROLLER)})",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={at('munge', 'socket')}",
        f"StateSaveLocation={at('state')}",
        f"SlurmctldPidFile={at('run', 'slurmctld.pid')}",
        f"SlurmctldLogFile={at('log', 'slurmctld.log')}",
        f"SlurmdPidFile={at('run', '%n.pid')}",
        f"SlurmdLogFile={at('log', '%n.log')}",
        f"SlurmdSpoolDir={at('nodes', '%n', 'spool')}",
        # One a node: PMIx of two nodes would otherwise meet in /tmp.
        f"TmpFS={at('nodes', '%n', 'tmp')}",
        "SlurmdParameters=config_overrides",
        "ProctrackType=proctrack/linuxproc",
        f"TaskPlugin={task_plugin(cluster)}",
        f"TaskProlog={at('taskprolog.sh')}",
        "SelectType=select/cons_tres",
        # Cores are allocated, as sites do: one task a node gets one core, not the whole node.
        "SelectTypeParameters=CR_Core",
        "MpiDefault=pmix",
        *(["GresTypes=gpu"] if cluster.gpus else []),
        # As on many sites, and so that nothing comes to rest on it: no accounting.
        "AccountingStorageType=accounting_storage/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SwitchType=switch/none",
        "MailProg=/bin/true",
        "ReturnToService=2",
        "SlurmctldTimeout=30",
        # Sites wait for minutes; at a rehearsal nobody does.
        "SlurmdTimeout=10",
        "MessageTimeout=5",
        # Half of what Slurm waits by default: five seconds for the launch that is ended, then its runner records it.
        "KillWait=15",
        "SchedulerParameters=sched_interval=5,bf_interval=5",
        f"NodeName=DEFAULT Sockets=1 CoresPerSocket={cluster.cores} ThreadsPerCore=1 RealMemory={cluster.memory_mb}"
        + (f" Gres=gpu:{cluster.gpus}" if cluster.gpus else ""),
        *(f"NodeName={node} NodeAddr={cluster.address(node)}" for node in cluster.node_names),
        "PartitionName=rehearsal Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    ]
    return "\n".join(lines) + "\n"


def task_plugin(cluster: Cluster) -> str:
    """Tasks are bound to the cores they were given, where the machine has them; core 0 of every node is its CPU 0.

    With more cores declared than there are, Slurm refuses steps on the others ("Unable to layout tasks on given
    cpus"), so that tasks are not bound at all then: cores are allocated and counted, and a task sees all CPUs.
    """
    return "task/affinity" if cluster.cores <= cluster.machine_cores else "task/none"


def gres_conf(cluster: Cluster) -> str:
    """The text of gres.conf: Slurm counts GPUs by their device files, and takes none on trust."""
    if not cluster.gpus:
        return "AutoDetect=off\n"
    return f"AutoDetect=off\nName=gpu File={cluster.path('dev')}/gpu[0-{cluster.gpus - 1}]\n"


def task_prolog(cluster: Cluster) -> str:
    """The text of the task prolog: what tasks leave in TMPDIR goes with the cluster, as with a job on many sites."""
    nodes = shlex.quote(str(cluster.path("nodes")))
    return f"""#!/bin/sh\necho export TMPDIR={nodes}/"$SLURMD_NODENAME"/tmp\n"""


def hosts(cluster: Cluster, outer_name: str) -> str:
    """What nodes see as /etc/hosts; ``outer_name`` is this machine's own host name, where srun and salloc run."""
    lines = ["127.0.0.1 localhost", f"{cluster.gateway} {outer_name}"]
    lines += [f"{cluster.address(host)} {host}" for host in cluster.hosts]
    return "\n".join(lines) + "\n"


def start_script(cluster: Cluster, host: str) -> str:
    """What runs first in a host's own namespaces (network, mounts, host name, IPC) and becomes its daemon.

    All mounts are seen by this host only, and go when its last process ends.
    """
    quoted = {name: shlex.quote(str(cluster.path(*parts))) for name, parts in _paths(host).items()}
    slurm = f"slurmctld -D -f {quoted['conf']}" if host == CONTROLLER else f"slurmd -D -N {host} -f {quoted['conf']}"
    return f"""\
set -e
hostname {host}
mount --bind {quoted["hosts"]} /etc/hosts
mount -t tmpfs -o mode=1777,nosuid,nodev {mount_mark(cluster.name)} /dev/shm
# /sys shows the network interfaces of whoever mounted it; Slurm wants the machine's cgroups beside them.
mount --rbind /sys/fs/cgroup {quoted["cgroup"]}
mount -t sysfs sysfs /sys
mount --rbind {quoted["cgroup"]} /sys/fs/cgroup
exec {slurm}
"""


def mount_mark(name: str) -> str:
    """The name of the file system at a host's /dev/shm: what lives on a host is told by it."""
    return f"hvdkan-{name}"


def _paths(host: str) -> dict[str, tuple[str, ...]]:
    return {"conf": ("slurm.conf",), "hosts": ("hosts",), "cgroup": ("nodes", host, "cgroup")}

"""Node weights and rendered files: an Operator is shown them, root has them applied and undone."""

from __future__ import annotations

from tests.slurm.conftest import SETTINGS
from tests.slurm.mini import Mini

CLUSTER = ("--nodes", "v100:2x8")
FRAGMENT = "/etc/slurm/synsched-nodes.conf"


def settings(mini: Mini, **nodes: object) -> None:
    mini.configure(
        **{
            **SETTINGS,
            "nodes": nodes,
            "storage": {"path": "/var/lib/synsched/root.db"},
        }
    )


def weight(mini: Mini, node: str) -> str:
    shown = mini.sure("scontrol", "-o", "show", "node", node)
    return next(word.removeprefix("Weight=") for word in shown.split() if word.startswith("Weight="))


def test_an_operator_is_shown_what_he_may_not_do(mini: Mini) -> None:
    settings(mini, weights=True, fragments=[f"gres.conf.j2={FRAGMENT}"])
    operations = mini.synsched("plan", "--json").json["operations"]
    assert {operation["verb"] for operation in operations} == {"weigh", "configure"}
    assert not any(operation["permitted"] for operation in operations)
    said = mini.synsched("run", "--once", on="ctl")  # on one host: two would be noticed, and the second stand back
    assert said.code == 3, "blocked for want of rights"
    assert weight(mini, "v100-1") == "1"


def test_root_has_a_rendered_file_put_in_place_and_read(mini: Mini) -> None:
    mini.write(FRAGMENT, "# before\n", on="ctl")
    settings(mini, fragments=[f"gres.conf.j2={FRAGMENT}"])
    said = mini.synsched("run", "--once", "--json", user="root", on="ctl")
    assert said.code == 0, said.out + said.err
    (outcome,) = said.json["outcomes"]
    assert (outcome["operation"]["verb"], outcome["result"]) == ("configure", "done")
    assert outcome["operation"]["before"] == "# before\n", "what was there is the undo"
    assert mini.sure("cat", FRAGMENT, on="ctl").startswith("# slurmsched")
    assert mini.synsched("run", "--once", "--json", user="root", on="ctl").json["outcomes"] == []


def test_root_weights_nodes_so_that_slurm_fills_the_fullest_first(mini: Mini) -> None:
    settings(mini, weights=True)
    busy = mini.train("alice", "-p", "debug", "--gres=gpu:5", "-c", "5", "--nodelist=v100-2")
    mini.until("it runs", lambda: mini.state(busy) == "RUNNING")
    said = mini.synsched("run", "--once", user="root", on="ctl")
    assert said.code == 0, said.out + said.err
    assert int(weight(mini, "v100-2")) < int(weight(mini, "v100-1"))
    single = mini.train("alice", "-p", "debug", "--gres=gpu:1", "-c", "1")
    mini.until("it runs", lambda: mini.state(single) == "RUNNING")
    assert mini.jobs()[single]["NodeList"] == "v100-2"

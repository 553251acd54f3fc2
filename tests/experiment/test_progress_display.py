"""What is said of cells that end while they are watched."""

import pytest

from benchmarks.ledger import identity, record_checkpoint
from pe_lab.experiment.progress_display import ProgressDisplay
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.progress import RequestedCell, Upcoming


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (None, "done   test loss 0.6, 1/1 cells"),
        (Upcoming(), "done   validation loss 0.15, 1 of 1 trainings"),  # tuning chooses by it
    ],
)
def test_a_try_of_tuning_ends_with_the_loss_that_decides(tmp_path, capsys, later, said):
    run = Ledger(tmp_path).run(identity({"name": "rope"}, 1))
    with ProgressDisplay(tmp_path, [RequestedCell(run.name, 4, "rope-s0", 1)], later):
        record_checkpoint(run, 4, 0.6)
    assert said in capsys.readouterr().err


def test_a_cell_that_is_only_measured_is_not_said_to_be_trained(tmp_path, capsys):
    run = Ledger(tmp_path).run(identity({"name": "rope"}, 1))
    with ProgressDisplay(tmp_path, [RequestedCell(run.name, 4, "rope-s0", 1)], train=False):
        record_checkpoint(run, 4, 0.6)
    assert "measured   test loss 0.6" in capsys.readouterr().err

"""Scores on Atari that PSER's authors print, and what follows from them.

Brittain et al. 2019, Tab. 1 and 5: random play, a human, PER and PSER.
"""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.papers.entry import Computation, Request

_SOURCES = ("experiments/papers/atari_scores.py",)


class Scores(NamedTuple):
    """A row of Brittain et al. 2019, Tab. 5 (200 million frames, random no-ops)."""

    random: float
    human: float
    per: float
    pser: float


# The games that have a human score, by their names in the Arcade Learning Environment.
SCORES = {
    "Alien": Scores(227.8, 7_127.7, 2_724.1, 4_297.9),
    "Amidar": Scores(5.8, 1_719.5, 364.2, 1_351.9),
    "Assault": Scores(222.4, 742, 7_761.3, 6_758.1),
    "Asterix": Scores(210, 8_503.3, 7_806, 32_766.5),
    "Asteroids": Scores(-719.1, 47_388.7, 905.6, 1_566.8),
    "Atlantis": Scores(12_850, 29_028.1, 810_043, 848_064.5),
    "BankHeist": Scores(14.2, 753.1, 894.5, 1_091.5),
    "BattleZone": Scores(2_360, 37_187.5, 26_215, 39_195),
    "BeamRider": Scores(363.9, 16_926.5, 24_100.2, 30_548.9),
    "Berzerk": Scores(123.7, 2_630.4, 618.5, 1_228),
    "Bowling": Scores(23.1, 160.7, 46.7, 41.7),
    "Boxing": Scores(0.1, 12.1, 92.8, 99.9),
    "Breakout": Scores(1.7, 30.5, 355.1, 429.1),
    "Centipede": Scores(2_090.9, 12_017, 6_192.1, 6_542),
    "ChopperCommand": Scores(811, 7_387.8, 746.5, 1_317.5),
    "CrazyClimber": Scores(10_780.5, 35_829.4, 104_080.5, 140_918),
    "DemonAttack": Scores(152.1, 1_971, 22_711.9, 74_366),
    "DoubleDunk": Scores(-18.6, -16.4, 20.6, 13.7),
    "Enduro": Scores(0, 860.5, 753, 901.4),
    "FishingDerby": Scores(-91.7, -38.7, 13.1, 36.3),
    "Freeway": Scores(0, 29.6, 0, 0),
    "Frostbite": Scores(65.2, 4_334.7, 3_501.1, 1_162.2),
    "Gopher": Scores(257.6, 2_412.5, 4_446.8, 17_524.7),
    "Gravitar": Scores(173, 3_351.4, 1_569.5, 918.8),
    "Hero": Scores(1_027, 30_826.4, 15_678.6, 20_447.5),
    "IceHockey": Scores(-11.2, 0.9, 7.3, -2.8),
    "Jamesbond": Scores(29, 302.8, 3_908.8, 1_572),
    "Kangaroo": Scores(52, 3_035, 12_150.5, 15_051),
    "Krull": Scores(1_598, 2_665.5, 8_189.1, 8_436.6),
    "KungFuMaster": Scores(258.5, 22_736.3, 14_673.5, 28_658),
    "MontezumaRevenge": Scores(0, 4_753.3, 0, 0),
    "MsPacman": Scores(307.3, 6_951.6, 4_875.3, 3_834.3),
    "NameThisGame": Scores(2_292.3, 8_049, 6_398.2, 7_370.2),
    "Phoenix": Scores(761.4, 7_242.6, 12_465.5, 15_228.2),
    "Pitfall": Scores(-229.4, 6_463.7, -8.8, 0),
    "Pong": Scores(-20.7, 14.6, 21, 21),
    "PrivateEye": Scores(24.9, 69_571.3, 253, 247),
    "Qbert": Scores(163.9, 13_455, 11_463.1, 15_396.1),
    "Riverraid": Scores(1_338.5, 17_118, 9_684.4, 8_169.9),
    "RoadRunner": Scores(11.5, 7_845, 41_578.5, 51_851),
    "Robotank": Scores(2.2, 11.9, 5.9, 52.7),
    "Seaquest": Scores(68.4, 42_054.7, 8_547.4, 10_375.2),
    "Skiing": Scores(-17_098.1, -4_336.9, -8_343.3, -9_807.1),
    "Solaris": Scores(1_236.3, 12_326.7, 1_331.7, 1_253.2),
    "SpaceInvaders": Scores(148, 1_668.7, 1_774, 6_754.8),
    "StarGunner": Scores(664, 10_250, 15_672, 35_448.5),
    "Tennis": Scores(-23.8, -8.3, 23.7, 0),
    "TimePilot": Scores(3_568, 5_229.2, 7_545, 9_033.5),
    "Tutankham": Scores(11.4, 167.6, 223.3, 180.9),
    "UpNDown": Scores(533.4, 11_693.2, 10_786.2, 12_098.9),
    "Venture": Scores(0, 1_187.5, 1_115, 152.5),
    "VideoPinball": Scores(16_256.9, 17_667.9, 232_144.6, 340_562.7),
    "WizardOfWor": Scores(563.5, 4_756.5, 1_674, 8_644.5),
    "YarsRevenge": Scores(3_092.9, 54_576.9, 19_538.9, 28_049.8),
    "Zaxxon": Scores(32.5, 9_173.3, 790, 6_207.5),
}


def atari_table(request: Request) -> pd.DataFrame:
    """Return Tab. 1 recomputed from Tab. 5, beside what the paper prints."""
    random, human, per, pser = (
        np.array([getattr(row, name) for row in SCORES.values()])
        for name in ("random", "human", "per", "pser")
    )
    rows = []
    for name, scores, printed in (("PER", per, (88, 607)), ("PSER", pser, (109, 832))):
        share = 100 * (scores - random) / np.abs(human - random)
        for what, value, expected in zip(
            ("median", "mean"), (np.median(share), share.mean()), printed, strict=True
        ):
            rows.append(
                {"claim": "tab1", "arm": name, "what": what, "found": value,
                 "expected": float(expected), "tolerance": 0.5 + 1e-9}
            )  # fmt: skip
    return pd.DataFrame(rows)


def atari_changes(request: Request) -> pd.DataFrame:
    """Return the percent change of PSER over PER in every game of Tab. 5 (Eq. 38)."""
    rows = [
        {"arm": game, "env": "PSER over PER", "seed": 0, "value": 100 * (row.pser - row.per)
         / abs(row.per) if row.per else math.nan}
        for game, row in sorted(SCORES.items())
    ]  # fmt: skip
    return pd.DataFrame(rows)


def atari_scores(request: Request) -> pd.DataFrame:
    """Return Tab. 5 as it is printed."""
    rows = [{"game": game, **row._asdict()} for game, row in sorted(SCORES.items())]
    return pd.DataFrame(rows)


TABLE = Computation("pser_atari_table", atari_table, {"smoke": {}}, _SOURCES, minutes=0.01)
CHANGES = Computation("pser_atari_changes", atari_changes, {"smoke": {}}, _SOURCES, minutes=0.01)
SCORED = Computation("pser_atari_scores", atari_scores, {"smoke": {}}, _SOURCES, minutes=0.01)

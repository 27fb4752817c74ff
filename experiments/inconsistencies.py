"""Where the paper (arXiv:2603.15031v1) disagrees with itself, or leaves open what a rerun has to know.

In our words, each with the item here that shows it. None concerns whether the method works.
"""

from __future__ import annotations

from analysis.report_contents import Inconsistency

INCONSISTENCIES = (
    Inconsistency(
        "compute-axis",
        "Fig. 4 plots loss against training compute and Table 2 gives parameters and tokens.",
        "6ND from Table 2 is 21 to 27 % short of the plotted compute. An account that adds attention's own "
        "operations meets four of the five sizes to 0.06 % and the largest to 0.4 %.",
        ("fig4", "table2"),
    ),
    Inconsistency(
        "full-against-mhc",
        "The text says that Full beats mHC.",
        "Not at 241M parameters: 1.874 for Full, 1.869 for mHC(-lite).",
        ("table2",),
    ),
    Inconsistency(
        "predecessor",
        "Each sublayer is said to attend most to its immediate predecessor.",
        "In Fig. 8's own panels the maximum lies there in 4, 7, 7 and 11 of 16 rows (Full before attention "
        "and before MLPs, Block before attention and before MLPs).",
        ("fig8",),
    ),
    Inconsistency(
        "batch",
        "The 48B runs follow Kimi Linear's recipe.",
        "Kimi Linear reports MuonClip and a batch of 32M tokens; this paper reports Muon and 8M. Fig. 5a "
        "ends at step 119,209, which is 1T tokens at 8M.",
        ("fig5",),
    ),
    Inconsistency(
        "table1-caption",
        "Table 1's caption averages amortised costs over the N sublayers of a block.",
        "A block has S sublayers, and the printed costs are those of an average over S.",
        ("table1",),
    ),
    Inconsistency(
        "mmlu-pro",
        "The abstract says that downstream results improve on all tasks.",
        "MMLU-Pro is a tie in Table 3; Section 5.2 says match or improve.",
        ("table3",),
    ),
    Inconsistency(
        "algorithm-1",
        "Algorithm 1 returns what its comment calls a log-sum-exp, and its line 10 indexes the partial sum "
        "by i.",
        "The merge needs the maximum and the sum apart, and Eq. 6 has i - 1. Key normalisation is not "
        "written in the algorithm.",
        (),
        ("repro/ops/phases.py", "tests/test_phases.py"),
    ),
    Inconsistency(
        "block-compute",
        "Section 3.2 gives Block's arithmetic as O(N^2), the related work as O(LN).",
        "Every one of L sublayers scores up to N + 1 sources: O(LN).",
        ("table1",),
    ),
    Inconsistency(
        "one-block",
        "One block (N = 1) is said to be a standard residual with the embedding set apart.",
        "It is a learned convex mixture of the embedding and the running sum, and uniform at the start, not "
        "a sum. S = 32 at L = 32 is that case.",
        ("fig6",),
    ),
    Inconsistency(
        "architecture-sweep",
        "Fig. 7 does not say whether Full or Block was trained, nor on how many tokens.",
        "Its losses lie below the scaling curve at the same compute (1.858 at Table 2's shape where the "
        "curve gives 1.922), so they are not comparable with Table 2.",
        ("fig7",),
    ),
    Inconsistency(
        "indivisible-blocks",
        "Table 2 has eight blocks at every size.",
        "26, 28 and 34 sublayers are no multiple of 8, and 24 gives blocks of one and a half transformer "
        "blocks. Section 3.2 has a shorter last block, which makes 6 to 9 blocks of S = 4; what was run is "
        "not stated. Here either the number of blocks or the block size can be fixed.",
        ("table2",),
    ),
    Inconsistency(
        "figure-2-comment",
        "A comment in Fig. 2 has the embedding among the blocks while the partial sum also starts from it.",
        "Read literally it is counted twice. The list of blocks has to be empty until the first one is "
        "sealed.",
        (),
        ("repro/depth/attnres.py", "tests/test_attnres.py"),
    ),
    Inconsistency(
        "denseformer",
        "Table 5 writes DenseFormer over sublayer outputs.",
        "The original mixes the cumulative states after whole transformer blocks; both can be run here.",
        ("table5", "table4"),
    ),
    Inconsistency(
        "sixteen",
        "The text calls Table 4's model 16-head, the caption 16-layer.",
        "It is the 436M row of Table 2: 16 transformer blocks, 32 sublayers, 16 heads.",
        ("table4",),
    ),
    Inconsistency(
        "single-runs",
        "Differences of 0.001 to 0.004 between rows are discussed.",
        "Each number is one run without a spread over seeds, so S = 2 against 4 or sigmoid against softmax "
        "may be within it.",
        ("table4", "fig6"),
    ),
    Inconsistency(
        "block-rank",
        "The rank of Block's depth-mixing matrix is put between N and N + S.",
        "The diagonal is not zero, so the rank of the L x L matrix is L for every scheme. What is bounded "
        "is the rank across a cut in depth (at most N + 1), and an effective rank.",
        ("fig9",),
    ),
    Inconsistency(
        "multiplier",
        "Block is said to save a factor of 1.25 in compute.",
        "1.25 follows from the printed coefficients; the curves as drawn give 1.27. Both come from five "
        "sizes with one run each.",
        ("fig4", "multiplier"),
    ),
)

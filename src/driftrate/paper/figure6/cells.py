"""The cells of Figure 6: a map by their ten genes, and how well these predict the type."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from driftrate.data.cytometry import CLASSES, GENES, Cells
from driftrate.errors import needs
from driftrate.paper.base import table

if TYPE_CHECKING:
    import pyarrow as pa

FOLDS, REPEATS = 5, 4


def _learn(module: str) -> Any:
    with needs("Figure 6", "sklearn"):
        return import_module(f"sklearn.{module}")


def embed(cells: Cells) -> pa.Table:
    """Place the cells in the plane by t-SNE of log(1 + expression).

    Reference:
        van der Maaten and Hinton (2008), "Visualizing data using t-SNE".
    """
    model = _learn("manifold").TSNE(init="pca", max_iter=500, random_state=0)
    place = model.fit_transform(np.log1p(cells.expression))
    return table(x=place[:, 0], y=place[:, 1], type=np.array(CLASSES)[cells.label])


def accuracy(cells: Cells) -> pa.Table:
    """Cross-validate classifiers that know nothing but the genes.

    Ten genes are judged on the cells that have all ten measured; where a gene is imputed, the
    others are also judged on all cells. A row is a classifier on a held-out fold.
    """
    pipeline, scale = _learn("pipeline").make_pipeline, _learn("preprocessing").StandardScaler
    classifiers = {
        "logistic": pipeline(scale(), _learn("linear_model").LogisticRegression(max_iter=1000)),
        "support vectors": pipeline(scale(), _learn("svm").SVC(C=3.0)),
        "extra trees": _learn("ensemble").ExtraTreesClassifier(100, random_state=0),
    }
    select = _learn("model_selection")
    known = np.log1p(cells.expression[cells.measured])
    sets = {"ten genes": (known, cells.label[cells.measured])}
    if cells.imputed:
        others = [place for place, gene in enumerate(GENES) if gene != "Rps3"]
        sets["nine genes"] = (np.log1p(cells.expression[:, others]), cells.label)
    folds = select.RepeatedStratifiedKFold(n_splits=FOLDS, n_repeats=REPEATS, random_state=0)
    rows = [
        (genes, len(label), name, score)
        for genes, (features, label) in sets.items()
        for name, model in classifiers.items()
        for score in select.cross_val_score(model, features, label, cv=folds)
    ]
    genes, count, name, score = (np.array(column) for column in zip(*rows, strict=True))
    return table(
        genes=genes, cells=count, classifier=name, accuracy=score, simulated=cells.simulated
    )

from __future__ import annotations

import numpy as np

from poolwise.learning.objectives import fit_rewards


def features_of(rows: int) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(rows, 2))
    return np.column_stack([x, np.ones(rows)])


def test_one_penalty_gives_the_ridge_of_each_action() -> None:
    features = features_of(60)
    action, fold = np.arange(60) % 2, np.arange(60) // 2 % 3
    reward = np.random.default_rng(1).normal(size=60)
    model, _ = fit_rewards(features, action, reward, fold, 2, penalties=[0.5])
    for k in (0, 1):
        block, own = features[action == k], reward[action == k] - reward.mean()
        expected = np.linalg.solve(block.T @ block + np.diag([1.5, 1.5, 1.0]), block.T @ own)
        np.testing.assert_allclose(model.coefficients[:, k], expected)


def test_rows_are_predicted_from_the_other_folds() -> None:
    features, action = features_of(60), np.zeros(60, int)
    fold, reward = np.arange(60) % 3, np.arange(60.0)
    _, before = fit_rewards(features, action, reward, fold, 1, penalties=[0.5])
    changed = np.where(fold == 0, reward[::-1], reward)
    changed[0] += reward[fold == 0].sum() - changed[fold == 0].sum()  # the same mean
    _, after = fit_rewards(features, action, changed, fold, 1, penalties=[0.5])
    np.testing.assert_allclose(before[fold == 0].clip(1, 58), after[fold == 0].clip(1, 58))
    assert not np.allclose(before[fold == 1], after[fold == 1])


def test_predictions_stay_within_the_rewards_and_unplayed_actions_get_the_mean() -> None:
    features, reward = features_of(90), np.tile([0.0, 1.0], 45)
    action = np.where(np.arange(90) < 30, -1, 0)
    model, predicted = fit_rewards(features, action, reward, np.arange(90) % 3, 2)
    assert 0 <= predicted.min() <= predicted.max() <= 1
    np.testing.assert_allclose(model.predict(features)[:, 1], 0.5)
    assert model.predict(100 * features).max() == 1

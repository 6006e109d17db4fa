WITH "rows" AS (
  SELECT
    CAST("logger" AS VARCHAR) AS "logger",
    TRY_CAST("reward" AS DOUBLE PRECISION) AS "reward",
    TRY_CAST("p_a" AS DOUBLE PRECISION) AS "p_0",
    TRY_CAST("p_b" AS DOUBLE PRECISION) AS "p_1",
    TRY_CAST("t" AS DOUBLE PRECISION) AS "t_0",
    TRY_CAST("p" AS DOUBLE PRECISION) AS "propensity"
  FROM my_log
), "totals" AS (
  SELECT
    COUNT(CASE WHEN "logger" = 'a' THEN 1 END) AS "n_0",
    COUNT(CASE WHEN "logger" = 'b' THEN 1 END) AS "n_1"
  FROM "rows"
), "probs" AS (
  SELECT
    "logger",
    "reward",
    "p_0",
    "p_1",
    "t_0",
    "propensity" AS "own",
    CASE
      WHEN COALESCE(
        ABS("reward") <= 1.7976931348623157e+308
        AND "propensity" > 0.0e0
        AND "propensity" <= 1.0e0
        AND "p_0" >= 0.0e0
        AND "p_0" <= 1.0e0
        AND "p_1" >= 0.0e0
        AND "p_1" <= 1.0e0
        AND "t_0" >= 0.0e0
        AND "t_0" <= 1.0e0
        AND ABS(
          (
            "propensity" - CASE WHEN "logger" = 'a' THEN "p_0" WHEN "logger" = 'b' THEN "p_1" END
          )
        ) <= 1e-06,
        FALSE
      )
      THEN 0
      ELSE 1
    END AS "bad"
  FROM "rows"
  OFFSET 0
), "ratios" AS (
  SELECT
    "logger",
    "bad",
    "reward",
    CAST("t_0" AS DOUBLE PRECISION) / NULLIF("mixture", 0.0e0) AS "balanced_weight_0",
    LEAST((
      CAST("t_0" AS DOUBLE PRECISION) / NULLIF("mixture", 0.0e0)
    ), 2.0e0) AS "balanced_weight_0_clip_2.0",
    CAST((
      2.0e0 * (
        CAST("t_0" AS DOUBLE PRECISION) / NULLIF("mixture", 0.0e0)
      )
    ) AS DOUBLE PRECISION) / (
      (
        (
          CAST("t_0" AS DOUBLE PRECISION) / NULLIF("mixture", 0.0e0)
        ) * (
          CAST("t_0" AS DOUBLE PRECISION) / NULLIF("mixture", 0.0e0)
        )
      ) + 2.0e0
    ) AS "balanced_weight_0_optimistic_2.0",
    CASE
      WHEN (
        CAST("t_0" AS DOUBLE PRECISION) / NULLIF("mixture", 0.0e0)
      ) <= 2.0e0
      THEN (
        CAST("t_0" AS DOUBLE PRECISION) / NULLIF("mixture", 0.0e0)
      )
      ELSE 0.0e0
    END AS "balanced_weight_0_switch_2.0",
    CASE
      WHEN "p_0" > 0.0e0
      THEN CAST("mixture" AS DOUBLE PRECISION) / NULLIF("p_0", 0.0e0)
      ELSE 1e+100
    END AS "inverse_ratio_0",
    CASE
      WHEN "p_1" > 0.0e0
      THEN CAST("mixture" AS DOUBLE PRECISION) / NULLIF("p_1", 0.0e0)
      ELSE 1e+100
    END AS "inverse_ratio_1",
    CAST(LEAST("p_0", "p_1") AS DOUBLE PRECISION) / NULLIF("own", 0.0e0) AS "overlap",
    CAST("p_0" AS DOUBLE PRECISION) / NULLIF("mixture", 0.0e0) AS "ratio_0",
    CASE WHEN "p_1" > 0.0e0 THEN 0.0e0 ELSE 1.0e0 END AS "unsupported_1",
    CAST("t_0" AS DOUBLE PRECISION) / NULLIF("own", 0.0e0) AS "weight_0"
  FROM (
    SELECT
      *,
      (
        CAST((
          (
            CAST("totals"."n_0" AS DOUBLE PRECISION) * "p_0"
          ) + (
            CAST("totals"."n_1" AS DOUBLE PRECISION) * "p_1"
          )
        ) AS DOUBLE PRECISION) / NULLIF(
          CAST("totals"."n_0" AS DOUBLE PRECISION) + CAST("totals"."n_1" AS DOUBLE PRECISION),
          0.0e0
        )
      ) AS "mixture"
    FROM "probs"
    CROSS JOIN "totals"
  ) AS mixed
  OFFSET 0
), "shared" AS (
  SELECT
    *,
    "balanced_weight_0" * "balanced_weight_0" * "reward" * "reward" AS "s_0"
  FROM "ratios"
  OFFSET 0
), "terms" AS (
  SELECT
    "logger",
    "bad",
    "balanced_weight_0" AS "x_0",
    "balanced_weight_0" * "reward" AS "x_1",
    "ratio_0" AS "x_2",
    "reward" * "weight_0" AS "x_3",
    "weight_0" AS "x_4",
    "s_0" * "inverse_ratio_0" AS "x_5",
    "s_0" * "inverse_ratio_1" AS "x_6",
    "balanced_weight_0" * "unsupported_1" AS "x_7",
    "balanced_weight_0_clip_2.0" AS "x_8",
    "balanced_weight_0_optimistic_2.0" AS "x_9",
    "balanced_weight_0_switch_2.0" AS "x_10",
    "overlap" AS "x_11",
    "reward" AS "x_12"
  FROM "shared"
  OFFSET 0
), "centres" AS (
  SELECT
    "logger",
    AVG("x_0") AS "c_0",
    AVG("x_1") AS "c_1",
    AVG("x_2") AS "c_2",
    AVG("x_3") AS "c_3",
    AVG("x_4") AS "c_4"
  FROM "terms"
  GROUP BY
    "logger"
)
SELECT
  "terms"."logger",
  COUNT(*) AS "rows",
  SUM("terms"."bad") AS "bad",
  SUM((
    "terms"."x_0" - "centres"."c_0"
  )) AS "sum_0",
  SUM((
    "terms"."x_1" - "centres"."c_1"
  )) AS "sum_1",
  SUM((
    "terms"."x_2" - "centres"."c_2"
  )) AS "sum_2",
  SUM((
    "terms"."x_3" - "centres"."c_3"
  )) AS "sum_3",
  SUM((
    "terms"."x_4" - "centres"."c_4"
  )) AS "sum_4",
  SUM("terms"."x_5") AS "sum_5",
  SUM("terms"."x_6") AS "sum_6",
  SUM("terms"."x_7") AS "sum_7",
  SUM("terms"."x_8") AS "sum_8",
  SUM("terms"."x_9") AS "sum_9",
  SUM("terms"."x_10") AS "sum_10",
  SUM("terms"."x_11") AS "sum_11",
  SUM("terms"."x_12") AS "sum_12",
  SUM((
    "terms"."x_0" - "centres"."c_0"
  ) * (
    "terms"."x_0" - "centres"."c_0"
  )) AS "scatter_0_0",
  SUM((
    "terms"."x_0" - "centres"."c_0"
  ) * (
    "terms"."x_1" - "centres"."c_1"
  )) AS "scatter_0_1",
  SUM((
    "terms"."x_0" - "centres"."c_0"
  ) * (
    "terms"."x_2" - "centres"."c_2"
  )) AS "scatter_0_2",
  SUM((
    "terms"."x_1" - "centres"."c_1"
  ) * (
    "terms"."x_1" - "centres"."c_1"
  )) AS "scatter_1_1",
  SUM((
    "terms"."x_1" - "centres"."c_1"
  ) * (
    "terms"."x_2" - "centres"."c_2"
  )) AS "scatter_1_2",
  SUM((
    "terms"."x_2" - "centres"."c_2"
  ) * (
    "terms"."x_2" - "centres"."c_2"
  )) AS "scatter_2_2",
  SUM((
    "terms"."x_3" - "centres"."c_3"
  ) * (
    "terms"."x_3" - "centres"."c_3"
  )) AS "scatter_3_3",
  SUM((
    "terms"."x_3" - "centres"."c_3"
  ) * (
    "terms"."x_4" - "centres"."c_4"
  )) AS "scatter_3_4",
  SUM((
    "terms"."x_4" - "centres"."c_4"
  ) * (
    "terms"."x_4" - "centres"."c_4"
  )) AS "scatter_4_4",
  MIN((
    "terms"."x_4" - "centres"."c_4"
  )) AS "lowest_4",
  MAX((
    "terms"."x_4" - "centres"."c_4"
  )) AS "largest_4",
  MIN("centres"."c_0") AS "centre_0",
  MIN("centres"."c_1") AS "centre_1",
  MIN("centres"."c_2") AS "centre_2",
  MIN("centres"."c_3") AS "centre_3",
  MIN("centres"."c_4") AS "centre_4",
  '1:55eb1a9190be139c' AS "poolwise"
FROM "terms"
LEFT JOIN "centres"
  ON "terms"."logger" = "centres"."logger"
GROUP BY
  "terms"."logger"
ORDER BY
  "terms"."logger";

WITH "rows" AS (
  SELECT
    CAST("logger" AS VARCHAR) AS "logger",
    TRY_CAST("reward" AS DOUBLE PRECISION) AS "reward",
    TRY_CAST("t" AS DOUBLE PRECISION) AS "t_0",
    TRY_CAST("p" AS DOUBLE PRECISION) AS "propensity"
  FROM my_log
), "kept" AS (
  SELECT
    *
  FROM "rows"
  WHERE
    COALESCE(
      ABS("reward") <= 1.7976931348623157e+308
      AND "propensity" >= -1.7976931348623157e+308
      AND "propensity" <= 0.0e0
      AND "t_0" <= 0.0e0
      AND NOT "logger" IS NULL,
      FALSE
    )
), "probs" AS (
  SELECT
    "logger",
    "reward",
    CASE
      WHEN (
        "t_0" - "propensity"
      ) < -150.0e0
      THEN 0.0e0
      ELSE EXP("t_0" - "propensity")
    END AS "t_0",
    CASE
      WHEN (
        (
          "propensity" - "propensity"
        )
      ) < -150.0e0
      THEN 0.0e0
      ELSE EXP((
        "propensity" - "propensity"
      ))
    END AS "own",
    CASE
      WHEN COALESCE(
        ABS("reward") <= 1.7976931348623157e+308
        AND "propensity" >= -1.7976931348623157e+308
        AND "propensity" <= 0.0e0
        AND "t_0" <= 0.0e0
        AND NOT "logger" IS NULL,
        FALSE
      )
      THEN 0
      ELSE 1
    END AS "bad"
  FROM "kept"
  OFFSET 0
), "ratios" AS (
  SELECT
    "logger",
    "bad",
    "reward",
    CAST("t_0" AS DOUBLE PRECISION) / NULLIF("own", 0.0e0) AS "weight_0"
  FROM (
    SELECT
      *
    FROM "probs"
  ) AS mixed
  OFFSET 0
), "shared" AS (
  SELECT
    *
  FROM "ratios"
  OFFSET 0
), "terms" AS (
  SELECT
    "logger",
    "bad",
    "reward" * "weight_0" AS "x_0",
    "weight_0" AS "x_1"
  FROM "shared"
  OFFSET 0
), "centres" AS (
  SELECT
    "logger",
    AVG("x_0") AS "c_0",
    AVG("x_1") AS "c_1"
  FROM "terms"
  GROUP BY
    "logger"
)
SELECT
  "terms"."logger",
  COUNT(*) AS "rows",
  SUM("terms"."bad") AS "bad",
  SUM((
    "terms"."x_0" - "centres"."c_0"
  )) AS "sum_0",
  SUM((
    "terms"."x_1" - "centres"."c_1"
  )) AS "sum_1",
  SUM((
    "terms"."x_0" - "centres"."c_0"
  ) * (
    "terms"."x_0" - "centres"."c_0"
  )) AS "scatter_0_0",
  SUM((
    "terms"."x_0" - "centres"."c_0"
  ) * (
    "terms"."x_1" - "centres"."c_1"
  )) AS "scatter_0_1",
  SUM((
    "terms"."x_1" - "centres"."c_1"
  ) * (
    "terms"."x_1" - "centres"."c_1"
  )) AS "scatter_1_1",
  MIN("centres"."c_0") AS "centre_0",
  MIN("centres"."c_1") AS "centre_1",
  '1:6772e0bfa95e6d01' AS "poolwise"
FROM "terms"
LEFT JOIN "centres"
  ON "terms"."logger" = "centres"."logger"
GROUP BY
  "terms"."logger"
ORDER BY
  "terms"."logger";

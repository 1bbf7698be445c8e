"""How workers train one model on Spark: gradient sharing, parameter averaging."""

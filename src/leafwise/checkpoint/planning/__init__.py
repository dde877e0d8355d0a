"""`lw.plan`: where each leaf gets its values, and every problem, from headers alone. Leaves, ties, plain values and
the states of optimizers are planned in turn; `conversions` and `carrying` apply other names and layouts first."""

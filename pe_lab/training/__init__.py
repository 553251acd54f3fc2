"""The LightningModule and the data of one training.

What calls what in a step, after `experiment.executor` has called Lightning's `fit`:

    data.SplitBatches                     the batches of a split; the order follows from seed and epoch
    module.training_step                  the loss of a batch, from logits of the slots that have an answer
    module.configure_gradient_clipping    clips gradients to `trainer.clip`, and logs their norm
    module.optimizer_step                 the step of the optimizer, then `constrain` of the encodings
    graph                                 the same step as a CUDA graph, where one is used

The executor evaluates by itself: its callback `experiment.callbacks.Validation` leads to `metrics.evaluate`.
Lightning's own validation, `module.validation_step`, only runs beside it if the user adds callbacks, which may read its
metrics, and where someone else's Trainer calls `fit` or `validate`.
"""

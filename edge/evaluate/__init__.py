"""`driftbox evaluate`: how well would this box have done on this footage? Real inference, labels and training; virtual time.

Every stream is cut into `windows` equal parts, each standing for `window_s` virtual seconds (the authors counted frames too, with
Cityscapes). The box's own engine runs under `scheduler.sim.driver`; what a job costs comes from a cost profile, so the result does
not depend on how busy this machine is. What a job *does* is real: `edge.jobs`, the code the live box runs.

Truth is kept apart from belief: shown quality is F1 against golden labels of evaluation frames that no job ever sees, with the model,
the knobs and the share in force at the frame's virtual time. A frame that the knobs skip is judged by the detections of the last
analysed one. Work that policies share (labels, trainings from the same parent on the same data) is done once, keyed by content.
"""

from edge.evaluate.command import evaluate_command
from edge.evaluate.studio import EvaluateOptions

__all__ = ["EvaluateOptions", "evaluate_command"]

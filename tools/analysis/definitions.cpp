#include "tools/analysis/definitions.h"

#include "tools/analysis/heads.h"
#include "tools/analysis/trajectory.h"

namespace grt {

Json definitions() {
  return {
      {"loss", "Mean over the predicted tokens of -log p(token), in nats."},
      {"kl_to_final",
       "KL(p_R || p_r) in nats, a mean over tokens: how much of the distribution at full depth R the exit at depth r "
       "lacks."},
      {"share", "Reduction of the loss from the exit before to this one, over the reduction from the first exit to R."},
      {"trained", "Whether the training objective of the model contains the loss at this exit."},
      {"flops_per_token", "Executed operations of a forward pass to this exit, body and head, at a whole window."},
      {"gate", "g = sigmoid(a/tau) multiplies the old state, 1 - g the proposal; statistics over tokens and features."},
      {"openness", "Mean of 1 - g."},
      {"effective_openness", "Mean norm of the applied update over mean norm of the proposal."},
      {"admitted_share", "Mean norm of (1 - g) o over mean norm of the proposal o."},
      {"forced", "Loss at full depth with every gate set to a constant; 1 keeps the state, so equals depth 0."},
      {"reinjection",
       "Loss at full depth with something else in the anchor's half of each step's input: the previous state, the "
       "embedding, or zeros; the gate keeps its anchor."},
      {"proposal_norm", "Mean norm of o, the core's output; of models without a gate o is the new state."},
      {"update_norm", "Mean norm of h_r - h_{r-1}, the applied update."},
      {"admitted_norm", "Mean norm of (1 - g) o, the part of the proposal that is let through."},
      {"cos_proposal_state", "Cosine of the proposal o_r and the old state h_{r-1}, a mean over tokens."},
      {"cos_new_old", "Cosine of the new state h_r and the old one h_{r-1}, a mean over tokens."},
      {"cos_successive_proposals", "Cosine of o_r and o_{r-1}, a mean over tokens."},
      {"cos_successive_updates", "Cosine of h_r - h_{r-1} and h_{r-1} - h_{r-2}, a mean over tokens."},
      {"ratio", "Mean norm of this step's update over that of the step before: below 1 the steps converge."},
      {"gain",
       "Largest singular value of the Jacobian of a step, from all states of a window before it to all after it, the "
       "anchor held fixed: the most that a small change of the states can grow in one step. By power iteration in f64 "
       "on J^T J, with J^T u by the tape and J v by a central difference; a mean over up to 4 windows."},
      {"classification",
       fmt::format(
           "Tokens by what their state does when steps are repeated (extended_steps of them; the last half "
           "counts). Fixed point: the last update is at most {} of the state, or each is {} of the one before "
           "or less. Orbit: else, updates do not grow as fast, and the state came back to an earlier one within "
           "{} of the way it had gone. Slider: else, the way from start to end is more than {} of the path.",
           kAtRest, kShrinking, kReturned, kStraight)},
      {"cka",
       "Linear CKA of two sets of states of the same tokens: 1 if a rotation and a scale turn one into the other, 0 if "
       "they have nothing linear in common. Unbiased estimate over mini-batches of 256 tokens, about 65,536 in all."},
      {"difficulty",
       "Tokens in ten equal parts by their loss at the first exit; improvement is that loss less the one at full "
       "depth. The line is fitted through the ten points (loss at the first exit, improvement)."},
      {"gate_correlation",
       "Pearson correlation, over tokens, of the mean gate in a step and the loss at the first exit."},
      {"weights.gate",
       "Singular values of the halves of the gate's first layer that take the state and the anchor; ratio: the largest "
       "of the anchor's over the largest of the state's."},
      {"weights.inject",
       "Cosine of the two halves of each row: the weights of one output for the state and the anchor."},
      {"heads",
       fmt::format(
           "A head's mean attention on the previous position, its own and the first one, over queries from "
           "position {} on; the kind is the largest of the three if that is at least {}, else other. Broadcast: "
           "the first position is read by all.",
           kFirstQuery, kHeadMass)},
      {"trajectories",
       "Probability of the target after the prompt at each exit (of several tokens: of all of them in a row), its rank "
       "among all tokens (of several: the worst, so 1 means that greedy decoding says it), and the five most probable "
       "next tokens."},
  };
}

}  // namespace grt

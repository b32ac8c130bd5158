// Package relay carries managed streams: the ones that need more than Envoy alone can do. Envoy
// calls its Handler with the requests that ext_proc offers; the packages internal/relay/realtime
// and internal/relay/grpcapi call [Relay.Generate].
//
// The relay admits a request through internal/dispatch, as ext_proc does, calls the replica
// itself, and reads every event of the answer. So it can send heartbeats while a request waits, end
// a stream at a deadline, and try another replica until the first token. It can replay events to a
// client that comes back, merge events for a client that reads slowly, and stop what a moderation
// rule forbids.
//
// # One managed stream
//
// Read in this order to follow a stream from the handler to the last byte:
//
//	handler.go     an HTTP request becomes a Call; carry starts or joins its generation
//	generation.go  the generation: one goroutine that waits for a ticket and runs attempts
//	attempt.go     failover over the replicas of a ticket; an attempt is committed or abandoned
//	events.go      reading the engine's events: held until the first token, moderated, published
//	moderate.go    what moderation rules let pass of an event
//	subscriber.go  the handler's goroutine: events that had to wait, heartbeats, the end
//	sink.go        what a protocol implements to write to its clients
//	httpsink.go    the Sink that writes an HTTP response
//	messages.go    the Messages API: a chat inside, translated in the sink
//	finish.go      how a stream ends, and what the client is told
//
// Beside the way: call.go (the request), named.go (request ids: join, restart, expire),
// replica.go (the request to a replica), answer.go and moderateanswer.go (answers that are no
// stream), status.go (what heartbeats say), usage.go (who counts the tokens), finalevents.go
// (events that Sluice itself adds), forward.go and remote.go (calls that a remote gateway carries),
// timedwriter.go (responses that another server writes), causes.go (why streams end).
//
// The packages below: replay delivers events to subscribers, queue holds them for one subscriber,
// moderation judges them.
//
// # Who ends what
//
//	Relay.ctx
//	    New makes it. Close cancels it.
//	generation
//	    startOrJoin makes it. run ends it when work has returned: run closes answered, the
//	    broadcast (which ends the subscribers) and done.
//	generation.ctx
//	    newGeneration makes it. Its cause says who has ended it:
//	      errClosing    Relay.Close
//	      errTimeout    startDeadlines, after the client's own timeout
//	      errTooLong    startDeadlines and failover.run, after the greatest duration
//	      errCancelled  the cancel request of any client
//	      errLeft       cancelIfIdle: the last subscriber has left. If the call is named: and none
//	                    has come back in time
//	      nil           run: the generation is over
//	ticket
//	    generation.dispatch gets it. generation.work releases it, exactly once. Before, it
//	    corrects the ticket, unless the attempt was preempted.
//	pending dispatch
//	    ext_proc begins it. generation.dispatch awaits it. If no generation gets it,
//	    serveInference, serveCall or carry cancels it.
//	attempt.ctx
//	    failover.try makes it, and cancels it when it returns. Before, the cause says who has:
//	      errPreempted, errNoFirstToken  abandon, before the first token
//	      errStalled, errLinger          the timers of the stream
//	      other causes                   finishStopped
//	subscriber
//	    generation.subscribe makes it. It ends when run returns: after the end of the broadcast or
//	    of the answer, after the end of the client's context, or after an error of the sink.
//	    subscribe then unsubscribes it. The broadcast cuts off a subscriber that is too slow.
//	Sink
//	    The protocol makes it. Finish is its last call, once, unless the client cannot be reached.
//	registry entry of a named generation
//	    startOrJoin claims it. expire forgets it some time after the generation is over. A
//	    repeated start forgets it if mayRestart allows.
//	request id among the gateways
//	    claimID claims it. releaseID releases it after the registry entry is forgotten.
package relay

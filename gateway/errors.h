/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error codes of S3 that the gateway uses, from "Error Responses" in the Amazon S3 API
 * Reference: code, HTTP status and default message. Called by request.c.
 */
#ifndef GW_ERRORS_H
#define GW_ERRORS_H

#define GW_ERRORS(X)                                                                            \
	X(AccessDenied, 403, "Access Denied")                                                   \
	X(AuthorizationHeaderMalformed, 400, "The authorization header is malformed.")          \
	X(AuthorizationQueryParametersError, 400, "The authorization query is malformed.")      \
	X(BadDigest, 400, "The digest that you specified did not match what was received.")     \
	X(BucketAlreadyExists, 409, "The requested bucket name is not available.")              \
	X(BucketAlreadyOwnedByYou, 409, "The bucket already exists, and you own it.")           \
	X(BucketNotEmpty, 409, "The bucket you tried to delete is not empty.")                  \
	X(EntityTooLarge, 400, "Your proposed upload exceeds the maximum allowed size.")        \
	X(EntityTooSmall, 400, "A part other than the last is smaller than 5 MiB.")             \
	X(IncompleteBody, 400, "The body has another length than its header says.")             \
	X(InternalError, 500, "We encountered an internal error. Please try again.")            \
	X(InvalidArgument, 400, "Invalid Argument")                                             \
	X(InvalidBucketName, 400, "The specified bucket is not valid.")                         \
	X(InvalidDigest, 400, "The Content-MD5 you specified is not valid.")                    \
	X(InvalidPart, 400, "A part was not uploaded, or its ETag or checksum differs.")        \
	X(InvalidPartNumber, 416, "The requested partnumber is not satisfiable")                \
	X(InvalidPartOrder, 400, "The list of parts was not in ascending order.")               \
	X(InvalidRange, 416, "The requested range is not satisfiable")                          \
	X(InvalidRDMAToken, 400, "The value of x-amz-rdma-token is malformed.")                 \
	X(InvalidRequest, 400, "Invalid Request")                                               \
	X(InvalidStorageClass, 400, "The storage class you specified is not valid")             \
	X(InvalidURI, 400, "Couldn't parse the specified URI.")                                 \
	X(KeyTooLongError, 400, "Your key is too long")                                         \
	X(MalformedXML, 400, "The XML you provided was not well-formed.")                       \
	X(MaxMessageLengthExceeded, 400, "Your request was too big.")                           \
	X(MetadataTooLarge, 400, "Your metadata headers exceed the maximum allowed size.")      \
	X(MethodNotAllowed, 405, "The specified method is not allowed against this resource.")  \
	X(MissingContentLength, 411, "You must provide the Content-Length HTTP header.")        \
	X(MissingSecurityHeader, 400, "Your request is missing a required header")              \
	X(NoSuchBucket, 404, "The specified bucket does not exist")                             \
	X(NoSuchBucketPolicy, 404, "The bucket policy does not exist")                          \
	X(NoSuchCORSConfiguration, 404, "The CORS configuration does not exist")                \
	X(NoSuchKey, 404, "The specified key does not exist.")                                  \
	X(NoSuchLifecycleConfiguration, 404, "The lifecycle configuration does not exist")      \
	X(NoSuchObjectLockConfiguration, 404, "The object has no lock configuration")           \
	X(NoSuchPublicAccessBlockConfiguration, 404,                                            \
	  "The public access block configuration was not found")                                \
	X(NoSuchRDMASession, 404, "There is no such session of hipobj-rc-v2, or it has ended.") \
	X(NoSuchTagSet, 404, "The TagSet does not exist")                                       \
	X(NoSuchUpload, 404, "The specified multipart upload does not exist.")                  \
	X(NoSuchVersion, 404, "The specified version does not exist.")                          \
	X(NoSuchWebsiteConfiguration, 404, "The website configuration does not exist")          \
	X(NotImplemented, 501, "A header or operation you requested is not implemented.")       \
	X(ObjectLockConfigurationNotFoundError, 404,                                            \
	  "Object Lock configuration does not exist for this bucket")                           \
	X(OwnershipControlsNotFoundError, 404, "The bucket ownership controls were not found")  \
	X(PreconditionFailed, 412, "At least one of the preconditions did not hold")            \
	X(ReplicationConfigurationNotFoundError, 404,                                           \
	  "The replication configuration was not found")                                        \
	X(RDMATooLarge, 413, "The transfer is longer than this gateway's memory for sessions.") \
	X(RDMATransferFailed, 500, "The transfer by RDMA failed; nothing is stored.")           \
	X(RequestTimeTooSkewed, 403, "The request time and the server's time differ too much.") \
	X(ServerSideEncryptionConfigurationNotFoundError, 404,                                  \
	  "The server side encryption configuration was not found")                             \
	X(ServiceUnavailable, 503, "Service is unable to handle request.")                      \
	X(SignatureDoesNotMatch, 403, "The signature does not match; check your secret key.")   \
	X(SlowDown, 503, "Please reduce your request rate.")                                    \
	X(StorageFull, 507, "The storage is full; the object was not stored.")                  \
	X(InvalidAccessKeyId, 403, "The access key does not exist in our records.")             \
	X(XAmzContentSHA256Mismatch, 400,                                                       \
	  "The provided 'x-amz-content-sha256' header does not match what was computed.")

#define GW_ERROR_ENUM(code, status, text) GW_##code,
enum gw_error { GW_ERRORS(GW_ERROR_ENUM) GW_ERROR_COUNT };

const char *gw_error_code(enum gw_error error);
unsigned gw_error_status(enum gw_error error);
const char *gw_error_text(enum gw_error error);
/* Returns the error with an S3 code such as "NoSuchKey"; InternalError if no error has this
 * code. */
enum gw_error gw_error_find(const char *code);

#endif

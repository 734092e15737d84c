; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.56, %join.52 ]
  %.9 = mul nsw i64 %i.8, -16
  %.10 = add nsw i64 %.9, 3
  %.11 = call i64 @llvm.smax.i64(i64 %.10, i64 0)
  %.12 = call i64 @llvm.smin.i64(i64 %.11, i64 16)
  %.13 = trunc i64 %.12 to i32
  %.14 = insertelement <8 x i32> poison, i32 %.13, i64 0
  %.15 = shufflevector <8 x i32> %.14, <8 x i32> poison, <8 x i32> zeroinitializer
  %.16 = icmp sge <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.15
  %.17 = trunc i64 %.12 to i32
  %.18 = insertelement <8 x i32> poison, i32 %.17, i64 0
  %.19 = shufflevector <8 x i32> %.18, <8 x i32> poison, <8 x i32> zeroinitializer
  %.20 = icmp sge <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.19
  %.21 = add nsw i64 %n, -2
  %.22 = call i64 @llvm.smax.i64(i64 %.21, i64 0)
  %.23 = call i64 @llvm.smin.i64(i64 %.22, i64 16)
  %.24 = trunc i64 %.23 to i32
  %.25 = insertelement <8 x i32> poison, i32 %.24, i64 0
  %.26 = shufflevector <8 x i32> %.25, <8 x i32> poison, <8 x i32> zeroinitializer
  %.27 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.26
  %.28 = trunc i64 %.23 to i32
  %.29 = insertelement <8 x i32> poison, i32 %.28, i64 0
  %.30 = shufflevector <8 x i32> %.29, <8 x i32> poison, <8 x i32> zeroinitializer
  %.31 = icmp slt <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.30
  %.32 = and <8 x i1> %.16, %.27
  %.33 = and <8 x i1> %.20, %.31
  %.34 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.32)
  %.35 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.33)
  %.36 = or i1 %.34, %.35
  br i1 %.36, label %then.37, label %join.38
then.37:
  %.39 = mul nsw i64 %i.8, 16
  %.40 = getelementptr float, ptr %A, i64 %.39
  %.41 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.40, <8 x i1> %.32, <8 x float> zeroinitializer)
  %.42 = getelementptr float, ptr %.40, i64 8
  %.43 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.42, <8 x i1> %.33, <8 x float> zeroinitializer)
  %.44 = getelementptr float, ptr %C, i64 %.39
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.41, ptr align 4 %.44, <8 x i1> %.32)
  %.45 = getelementptr float, ptr %.44, i64 8
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.43, ptr align 4 %.45, <8 x i1> %.33)
  br label %join.38
join.38:
  %.46 = xor <8 x i1> %.32, splat (i1 true)
  %.47 = xor <8 x i1> %.33, splat (i1 true)
  %.48 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.46)
  %.49 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.47)
  %.50 = or i1 %.48, %.49
  br i1 %.50, label %then.51, label %join.52
then.51:
  %.53 = mul nsw i64 %i.8, 16
  %.54 = getelementptr float, ptr %C, i64 %.53
  call void @llvm.masked.store.v8f32.p0(<8 x float> zeroinitializer, ptr align 4 %.54, <8 x i1> %.46)
  %.55 = getelementptr float, ptr %.54, i64 8
  call void @llvm.masked.store.v8f32.p0(<8 x float> zeroinitializer, ptr align 4 %.55, <8 x i1> %.47)
  br label %join.52
join.52:
  %i_next.56 = add nuw nsw i64 %i.8, 1
  %.57 = icmp slt i64 %i_next.56, %.4
  br i1 %.57, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, <8 x i1>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i1 @llvm.vector.reduce.or.v8i1(<8 x i1>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.38, %join.35 ]
  %.9 = mul nsw i64 %i.8, -16
  %.10 = add nsw i64 %.9, 3
  %.11 = call i64 @llvm.smax.i64(i64 %.10, i64 0)
  %.12 = call i64 @llvm.smin.i64(i64 %.11, i64 16)
  %.13 = trunc i64 %.12 to i32
  %.14 = insertelement <16 x i32> poison, i32 %.13, i64 0
  %.15 = shufflevector <16 x i32> %.14, <16 x i32> poison, <16 x i32> zeroinitializer
  %.16 = icmp sge <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.15
  %.17 = add nsw i64 %n, -2
  %.18 = call i64 @llvm.smax.i64(i64 %.17, i64 0)
  %.19 = call i64 @llvm.smin.i64(i64 %.18, i64 16)
  %.20 = trunc i64 %.19 to i32
  %.21 = insertelement <16 x i32> poison, i32 %.20, i64 0
  %.22 = shufflevector <16 x i32> %.21, <16 x i32> poison, <16 x i32> zeroinitializer
  %.23 = icmp slt <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.22
  %.24 = and <16 x i1> %.16, %.23
  %.25 = call i1 @llvm.vector.reduce.or.v16i1(<16 x i1> %.24)
  br i1 %.25, label %then.26, label %join.27
then.26:
  %.28 = mul nsw i64 %i.8, 16
  %.29 = getelementptr float, ptr %A, i64 %.28
  %.30 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %.29, <16 x i1> %.24, <16 x float> zeroinitializer)
  %.31 = getelementptr float, ptr %C, i64 %.28
  call void @llvm.masked.store.v16f32.p0(<16 x float> %.30, ptr align 4 %.31, <16 x i1> %.24)
  br label %join.27
join.27:
  %.32 = xor <16 x i1> %.24, splat (i1 true)
  %.33 = call i1 @llvm.vector.reduce.or.v16i1(<16 x i1> %.32)
  br i1 %.33, label %then.34, label %join.35
then.34:
  %.36 = mul nsw i64 %i.8, 16
  %.37 = getelementptr float, ptr %C, i64 %.36
  call void @llvm.masked.store.v16f32.p0(<16 x float> zeroinitializer, ptr align 4 %.37, <16 x i1> %.32)
  br label %join.35
join.35:
  %i_next.38 = add nuw nsw i64 %i.8, 1
  %.39 = icmp slt i64 %i_next.38, %.4
  br i1 %.39, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i1 @llvm.vector.reduce.or.v16i1(<16 x i1>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
